"""Names, files, ``extends`` and the text of every complaint."""

from __future__ import annotations

import contextlib
import os
import re
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import TargetError
from intact.targets import (
    DType,
    FixedPoint,
    FloatOnce,
    Multiplier,
    Product,
    load_target,
    target_from_json,
    target_names,
    target_to_json,
)
from intact.targets import load as load_module
from tests.targets.nodes import MINIMAL, WAY, target, write

# ---- names and files ----------------------------------------------------------------------------


def test_shipped_names() -> None:
    assert set(target_names()) >= {"integer-pow2", "onnxruntime", "onnxruntime-avx2", "tensorrt"}
    assert list(target_names()) == sorted(target_names())


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(TargetError, match="unknown target 'onnxruntme'; did you mean 'onnxruntime"):
        load_target("onnxruntme")
    with pytest.raises(TargetError, match=r"known: arm, .*, \.\.\.; see `intact targets`$"):
        load_target("")


def test_path_as_text_or_path(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert load_target(path) == load_target(str(path))
    assert load_target(path).name == "mine"


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"absent\.toml: no such file; shipped targets: arm"):
        load_target(tmp_path / "absent.toml")
    with pytest.raises(TargetError, match=r"cannot be read \(Is a directory\)"):
        load_target(tmp_path)
    with pytest.raises(TargetError, match=r"^a.x00b\.toml: (no such file|cannot be read)"):
        load_target("a\0b.toml")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(TargetError, match="it is a pipe, not a file"):  # nor waits for a writer
        load_target(tmp_path / "pipe.toml")
    with pytest.raises(TargetError, match="it is a device, not a file"):
        load_target("/dev/zero")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "key 'format' is missing"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"format = ", "not TOML: Invalid value .at end of document"),
        (b"a = 1\na = 2", "not TOML: Cannot overwrite a value"),
        (b"# " + b"x" * (1 << 20), "larger than 1 MiB"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"9" * 10_000, "not TOML"),
        (".".join(["a"] * 100_000).encode() + b" = 1", "line 1 has more than 64 dots"),
    ],
    ids=["empty", "binary", "cut", "twice", "large", "deep", "long number", "deep key"],
)
def test_hostile_bytes(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(TargetError, match=message) as caught:
        load_target(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_a_target_error_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = (Path(load_module.__file__).parent / "integer-pow2.toml").read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 30, len(text))))
    damage = data.draw(st.text(max_size=8) | st.sampled_from(["[", "]", "= 1\n", '"', "{", "-1"]))
    path = tmp_path_factory.mktemp("damaged") / "x.toml"
    path.write_text(text[:start] + damage + text[end:], encoding="utf-8", errors="replace")
    # Anything but a TargetError fails the test.
    with contextlib.suppress(TargetError):
        load_target(path)


# ---- complaints ---------------------------------------------------------------------------------

BAD = [
    ('[wieght]\ndtype="int8"', "unknown key 'wieght'; did you mean 'weight'?"),
    ("[topology]\nin_plce = true", "unknown key 'in_plce' in [topology]; did you mean 'in_place'?"),
    ("[[op]]\nops = ['Conv']\nscale = 1", "unknown key 'scale' in [[op]] for Conv; did you mean"),
    (
        "[[op]]\nops = ['Conv']\nwhen = { kernel = [3] }",
        "unknown key 'kernel' in [[op]] for Conv, when; did you mean 'kernel_shape'?",
    ),
    (
        "[[op]]\nops = ['Relu']\n[[op]]\nops = ['Conv']\nweight = { bit = 6 }",
        "unknown key 'bit' in [[op]] for Conv, weight; did you mean 'bits'?",
    ),
    ("[bias]\ndead_channels = 'zeros'", "[bias] dead_channels is 'zeros'; did you mean 'zero'?"),
    ("[bias]\ndtype = 'int23'", "[bias] dtype is 'int23'; did you mean 'int32'?"),
    ("[[op]]\nops = ['Conv']\nscales = 'unify'", "scales is 'unify'; did you mean 'unify_all'?"),
    (
        "[[op]]\nops = ['Conv']\nwhen = { groups = 'depthwize' }",
        "[[op]] for Conv, when groups is 'depthwize'; did you mean 'depthwise'?",
    ),
    ("[[op]]\nops = 'Conv'", "[[op]] without ops ops is of type string; give array"),
    ("[[op]]\nops = ['Conv']\nfloat = 1", "float is of type integer; give true or false"),
    ("[[op]]\nfloat = true", "key 'ops' is missing in [[op]] without ops; add it"),
    ("[topology]\nin_place = 2020-01-01", "[topology] in_place is of type date; give true or"),
    ("[[fusion]]\npattern = [['Conv']]\nshare = 1", "unknown key 'share' in [[fusion]] number 1"),
    ("[[fusion]]\npattern = ['Conv']", "[[fusion]] number 1"),
]


@pytest.mark.parametrize(("extra", "message"), BAD, ids=[message for _, message in BAD])
def test_unknown_keys_and_wrong_types(extra: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=re.escape(message)) as caught:
        target(tmp_path, extra)
    assert str(caught.value).startswith(str(tmp_path / "mine.toml") + ": ")


def test_complaints_about_schemes(tmp_path: Path) -> None:
    for old, new, message in [
        ("symmetric = true", "symetric = true", "unknown key 'symetric' in [weight]; did you mean"),
        ("symmetric = true", "", "key 'symmetric' is missing in [weight]"),
        ('"uint8"', '"uint7"', "[activation] dtype is 'uint7'; did you mean 'uint8'?"),
        ('dtype = "int8"', "dtype = 8", "[weight] dtype is of type integer; give string"),
        ('dtype = "int8"', 'dtype = "int8"\nbits = "8"', "[weight] bits is of type string"),
        ('dtype = "int8"', 'dtype = "int8"\nbits = true', "[weight] bits is of type"),
        ('dtype = "int8"', "", "key 'dtype' is missing in [weight]"),
        ("format = 2", "format = 3", "format is 3; this version reads formats 1 to 2"),
        ('"mine"', '" "', "name is empty"),
        ("format = 2", "format = 2\nop = 3", "mine.toml: op is of type integer; give array"),
    ]:
        with pytest.raises(TargetError, match=re.escape(message)):
            target(tmp_path, body=MINIMAL.replace(old, new))


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        target(tmp_path, '[[op]]\nops = ["\\u001b[31mConv"]')
    assert "\x1b" not in str(caught.value)
    with pytest.raises(TargetError) as caught:
        target(tmp_path, '"\\u001b\\n" = 1')
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_rules_are_checked_in_linear_time(tmp_path: Path) -> None:
    rules = "".join(
        f"[[op]]\nops=['Conv']\nwhen={{max_consumers={i + 1}}}\n" for i in range(20_000)
    )
    assert len(target(tmp_path, rules).rules) == 20_000


# ---- extends ------------------------------------------------------------------------------------

VARIANT = 'format = 2\nname = "variant"\nextends = "mine.toml"\n'
RULES = """
[[op]]
ops = ["Conv", "Gemm"]
float_output = true
cost = 2.0
[[op]]
ops = ["Add"]
scales = "unify_inputs"
[[fusion]]
pattern = [["Conv"], ["Relu"]]
[[arithmetic.overrides]]
ops = ["Add"]
zero_point = "before_rounding"
rounding = "half_up"
"""


def test_values_replace_and_tables_merge(tmp_path: Path) -> None:
    made = load_target(write(tmp_path, MINIMAL))
    write(tmp_path, MINIMAL)
    over = load_target(write(tmp_path, VARIANT + "[weight]\nquant_min = -127", "variant.toml"))
    assert (over.name, over.extends) == ("variant", "mine.toml")
    assert over.weight.quant_min == -127
    assert made.weight.quant_min == -128
    assert over.weight.dtype is DType.INT8
    assert over.activation == made.activation


def test_rules_merge_by_operators_and_condition(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + RULES)
    text = """
[[op]]
ops = ["Gemm", "Conv"]
cost = 3.0
[[op]]
ops = ["Conv"]
when = { kernel_shape = [3, 3] }
quantize = false
reason = "slow"
[[fusion]]
pattern = [["Gemm"], ["Relu"]]
[[fusion]]
pattern = [["Conv"], ["Relu"]]
[[arithmetic.overrides]]
ops = ["Add"]
rounding = "up"
"""
    made = load_target(write(tmp_path, VARIANT + text, "variant.toml"))
    assert [set(rule.ops) for rule in made.rules] == [{"Conv", "Gemm"}, {"Add"}, {"Conv"}]
    assert made.rules[0].cost == 3.0
    assert made.rules[0].float_output
    assert not made.rules[2].quantize
    assert [fusion.pattern[0][0] for fusion in made.fusions] == ["Conv", "Gemm"]
    (override,) = made.arithmetic.overrides
    assert override.changes == {"rounding": "up", "zero_point": "before_rounding"}


def test_a_table_that_names_its_kind_replaces_that_of_the_base(tmp_path: Path) -> None:
    way = '{ kind = "fixed_point", product = "single", multiplier_bits = 8 }'
    write(tmp_path, MINIMAL.replace(WAY, way))
    for over, expected in (
        ("{ multiplier = 'float64' }", FixedPoint(Product.SINGLE, Multiplier.FLOAT64, 8)),
        ("{ kind = 'fixed_point', product = 'double' }", FixedPoint(Product.DOUBLE)),
        ("{ kind = 'float_once', fused_bias = true }", FloatOnce(fused_bias=True)),
    ):
        text = f"{VARIANT}[arithmetic]\nrequantize = {over}"
        assert load_target(write(tmp_path, text, "v.toml")).arithmetic.requantize == expected


def test_an_empty_list_clears(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + RULES)
    made = load_target(write(tmp_path, VARIANT + "op = []\nfusion = []", "variant.toml"))
    assert made.rules == ()
    assert made.fusions == ()
    assert made.arithmetic.overrides != ()


def test_extends_may_be_a_shipped_name_and_go_on(tmp_path: Path) -> None:
    write(tmp_path, 'format=1\nname="a"\nextends="onnxruntime"\n[bias]\ndtype="float32"', "a.toml")
    path = write(tmp_path, 'format=1\nname="b"\nextends="a.toml"\n[weight]\nbits=7', "b.toml")
    with pytest.raises(TargetError, match="does not fit 7 bits"):  # base: quant_min = -127
        load_target(path)
    write(
        tmp_path, 'format=1\nname="b"\nextends="a.toml"\n[weight]\nquant_min=-63\nbits=7', "b.toml"
    )
    made = load_target(path)
    assert made.bias.dtype is DType.FLOAT32
    assert (made.weight.bits, made.weight.quant_max) == (7, 63)
    assert made.rules == load_target("onnxruntime").rules


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("mine.toml", "extends is circular: .*mine.toml -> .*mine.toml"),
        ("onnxruntme", "extends names an unknown target: 'onnxruntme'; did you mean 'onnxruntime"),
        ("../mine.toml", "names a file outside the folder"),
        ("/etc/x.toml", "names a file outside the folder"),
        ("sub/x.toml", "names a file outside the folder"),
        ("sub\\\\x.toml", "names a file outside the folder"),
        ("link.toml", "names a file outside the folder"),
        ("absent.toml", r"absent\.toml: no such file"),
        ("a\\u0000.toml", "cannot be read|outside the folder"),
    ],
)
def test_extends_that_is_refused(extends: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    write(tmp_path, MINIMAL, "outside.toml")
    (folder / "link.toml").symlink_to(tmp_path / "outside.toml")
    with pytest.raises(TargetError, match=message):
        load_target(write(folder, f'format = 2\nname = "m"\nextends = "{extends}"'))


def test_extends_of_wrong_type_and_without_name(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="extends is of type integer"):
        load_target(write(tmp_path, MINIMAL.replace("format = 2", "format = 2\nextends = 3")))
    write(tmp_path, MINIMAL)
    with pytest.raises(TargetError, match="key 'name' is missing; name the variant"):
        load_target(write(tmp_path, 'format = 2\nextends = "mine.toml"', "v.toml"))


def test_circle_of_two(tmp_path: Path) -> None:
    write(tmp_path, 'format=1\nname="a"\nextends="b.toml"', "a.toml")
    path = write(tmp_path, 'format=1\nname="b"\nextends="a.toml"', "b.toml")
    with pytest.raises(TargetError, match=r"circular: .*b\.toml -> .*a\.toml -> .*b\.toml; remove"):
        load_target(path)


def test_chain_that_is_too_long(tmp_path: Path) -> None:
    for i in range(30):
        write(tmp_path, f'format=1\nname="n"\nextends="{i + 1}.toml"', f"{i}.toml")
    with pytest.raises(TargetError, match="more than 16 files deep"):
        load_target(tmp_path / "0.toml")


def test_a_fault_is_reported_in_the_file_where_it_stands(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL + "[topology]\nwrong = 1")
    with pytest.raises(TargetError, match=r"mine\.toml: unknown key 'wrong'"):
        load_target(write(tmp_path, VARIANT, "variant.toml"))
    write(tmp_path, MINIMAL)
    with pytest.raises(TargetError, match=r"variant\.toml: unknown key 'wrong'"):
        load_target(write(tmp_path, VARIANT + "[topology]\nwrong = 1", "variant.toml"))


# ---- entry points -------------------------------------------------------------------------------


def register(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = metadata.EntryPoint("theirs", value, load_module.ENTRY_POINT_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry])


def test_registered_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load_module, "_probe", write(tmp_path, MINIMAL), raising=False)
    register(monkeypatch, "intact.targets.load:_probe")
    assert "theirs" in target_names()
    assert load_target("theirs").name == "mine"
    made = load_target(write(tmp_path, 'format=1\nname="v"\nextends="theirs"', "v.toml"))
    assert made.extends == "theirs"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("intact.targets.absent:PATH", "'theirs' is registered as .*, which fails: No module"),
        ("intact.targets.load:ENTRY_POINT_GROUP.upper", "which is not a path"),
    ],
)
def test_broken_registrations(value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, value)
    assert "theirs" in target_names()
    assert load_target("onnxruntime").name == "onnxruntime"
    with pytest.raises(TargetError, match=message):
        load_target("theirs")


# ---- stored targets -----------------------------------------------------------------------------


def test_stored_target_is_checked_like_a_file() -> None:
    stored = target_to_json(load_target("tensorrt"))
    assert target_from_json(stored) == load_target("tensorrt")
    with pytest.raises(TargetError, match="the stored target: unknown key 'x'"):
        target_from_json({**stored, "x": 1})
    with pytest.raises(TargetError, match="the stored target: format is 7"):
        target_from_json({**stored, "format": 7})
