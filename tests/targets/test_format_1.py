"""Files of format 1 say of each operator, under each condition, what the shipped ones say today."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from intact.errors import TargetError
from intact.targets import (
    Arithmetic,
    FixedPoint,
    FloatInTurn,
    FloatOnce,
    FloatType,
    InstructionSet,
    PairSaturate,
    TargetArithmetic,
    Wrap,
    load_target,
    target_from_json,
    target_to_json,
)
from intact.targets.rules import Condition
from tests.targets.nodes import MINIMAL, write

OLD = Path(__file__).parent / "format_1"
"""The arithmetic of the shipped files as format 1 had it, in targets of little else."""

FLAT = MINIMAL.replace("format = 2", "format = 1").replace('{ kind = "float_once" }', '"float32"')


def stated(when: Condition) -> set[tuple[str, str]]:
    return {(key, repr(value)) for key in when.__struct_fields__ if (value := getattr(when, key))}


def cases(*given: TargetArithmetic) -> Iterator[tuple[str, list[Condition]]]:
    """Yield operators, and conditions that may hold together."""
    overrides = [each for one in given for each in one.overrides]
    for op_type in sorted({"Conv", "Gemm", *(op for each in overrides for op in each.ops)}):
        known: list[Condition] = []
        for each in overrides:
            if op_type in each.ops and each.when is not None and each.when not in known:
                known.append(each.when)
        for count in range(len(known) + 1):
            for held in itertools.combinations(known, count):
                implied = [w for w in known if any(stated(w) <= stated(each) for each in held)]
                if len(implied) == count:
                    yield op_type, list(held)


def where_it_matters(arithmetic: Arithmetic, op_type: str) -> Arithmetic:
    """Leave out what only additions or convolutions read, and what is newer than format 1."""
    if arithmetic.pairs is not None:
        block = arithmetic.pairs.block if op_type == "Conv" else None
        pairs = msgspec.structs.replace(arithmetic.pairs, halves=False, block=block)
        arithmetic = msgspec.structs.replace(arithmetic, accumulator=pairs)
    way = arithmetic.requantize
    if op_type in ("Add", "Sub") or not isinstance(way, FixedPoint):
        return arithmetic
    return msgspec.structs.replace(
        arithmetic, requantize=msgspec.structs.replace(way, addition_shift=0)
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in OLD.glob("*.toml")))
def test_a_file_is_upgraded_to_equal_arithmetic(name: str) -> None:
    old, new = load_target(OLD / f"{name}.toml").arithmetic, load_target(name).arithmetic
    for op_type, held in cases(old, new):
        for processor in (None, *InstructionSet):
            ways = (each.on(processor).for_op(op_type, held.__contains__) for each in (old, new))
            found, expected = (where_it_matters(each, op_type) for each in ways)
            assert found == expected, (op_type, held, processor)


def test_a_stored_target_of_format_1_is_read() -> None:
    """As plans of before have it: every field, null where an override does not state it."""
    new = load_target("onnxruntime-avx2")
    nothing = dict.fromkeys(("requantize", "pair_block", "addition", "zero_point", "when"))
    old = target_to_json(new) | {
        "format": 1,
        "arithmetic": {
            "requantize": "float32",
            "accumulator_overflow": "pair_saturate",
            "accumulator_bits": 32,
            "pair_bits": 16,
            "pair_block": None,
            "pair_rows": True,
            "scales_in_turn": False,
            "folded_ends": False,
            "multiplier_bits": None,
            "addition": "dequantized",
            "addition_shift": 20,
            "overrides": [
                nothing | {"ops": ["Add"], "addition": "fused_multiply_add"},
                nothing | {"ops": ["Gemm"], "accumulator_overflow": "wrap", "instructions": []},
            ],
        },
    }
    read = target_from_json(json.loads(json.dumps(old)))
    assert msgspec.structs.replace(read, arithmetic=new.arithmetic) == new
    add, gemm = map(read.arithmetic_for, ("Add", "Gemm"))
    assert add.pairs == PairSaturate(pair_bits=16, rows=True)
    assert add.requantize == load_target("onnxruntime").arithmetic_for("Add").requantize
    assert (gemm.requantize, gemm.accumulator) == (FloatOnce(), Wrap())


def test_a_field_is_added_to_what_holds_before_it(tmp_path: Path) -> None:
    """An override changed one field then; kinds are stated as a whole now."""
    text = """
[[arithmetic.overrides]]
ops = ["Conv", "Gemm"]
scales_in_turn = true
[[arithmetic.overrides]]
ops = ["Conv"]
when = { ranks = [3], constant_weight = true }
requantize = "float64"
instructions = ["AVX2"]
[[arithmetic.overrides]]
ops = ["Conv", "Gemm", "Add"]
when = { ranks = [3] }
ratio_conversions = true
fused_bias = true
requantize = "float32"
"""
    made = load_target(write(tmp_path, FLAT + text)).arithmetic
    ways = [(each.ops, each.changes["requantize"]) for each in made.overrides]
    assert ways == [
        (("Conv", "Gemm"), FloatInTurn()),
        (("Conv",), FloatInTurn(precision=FloatType.FLOAT64)),
        (("Conv", "Gemm"), FloatInTurn(ratio_conversions=True, fused_bias=True)),
        (("Add",), FloatOnce(ratio_conversions=True, fused_bias=True)),
    ]


def test_a_variant_changes_what_the_overrides_of_its_base_leave(tmp_path: Path) -> None:
    """The base is of format 2 and states kinds as a whole: only what differs there stays."""
    text = '[[arithmetic.overrides]]\nops = ["Add"]\nrequantize = { kind = "float_once", %s }\n'
    write(tmp_path, MINIMAL + text % "fused_bias = true")
    variant = 'format = 1\nname = "variant"\nextends = "mine.toml"\n[arithmetic]\n'
    made = load_target(write(tmp_path, variant + "scales_in_turn = true", "variant.toml"))
    assert made.arithmetic_for("Add").requantize == FloatInTurn(fused_bias=True)


def test_a_variant_that_does_not_say_its_format_may_be_of_either(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    header = 'name = "variant"\nextends = "mine.toml"\n[arithmetic]\n'
    for text in ('accumulator_overflow = "wrap"', 'accumulator = { kind = "wrap" }'):
        made = load_target(write(tmp_path, header + text, "variant.toml"))
        assert (made.format, made.arithmetic.accumulator) == (2, Wrap())


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("ops", "3"), ("ops", "[[1]]"), ("when", "[3]"), ("instructions", "[{}]"), ("rounding", "[]")],
)
def test_overrides_of_wrong_types_are_told(key: str, wrong: str, tmp_path: Path) -> None:
    given = {"ops": "['Conv']", key: wrong, "fused_bias": "true"}
    entry = ", ".join(f"{name} = {value}" for name, value in given.items())
    with pytest.raises(TargetError, match=r"mine\.toml: .*; "):
        load_target(write(tmp_path, f"{FLAT}overrides = [{{ {entry} }}, {{ {entry} }}]"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"float32"', '"flot32"', "requantize is 'flot32'; did you mean 'float32'"),
        ('"float32"', '"shift"\nscales_in_turn = true', "unknown key 'scales_in_turn'"),
        ('"float32"', '"float32"\nfolded_factor = true', "it is one of kind 'float_ends'"),
        ('"float32"', '"float32"\naccumulator_overflow = "wrp"', "did you mean 'wrap'"),
        ('"float32"', '"float32"\naccumulator_overflow = "pair_saturate"', "key 'pair_bits' is mi"),
        ("format = 1", "format = 2", "requantize is of type string; give { kind = ... }"),
    ],
)
def test_mistakes_are_told(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=message):
        load_target(write(tmp_path, FLAT.replace(old, new)))


def test_an_override_that_adds_to_one_of_several_is_refused(tmp_path: Path) -> None:
    one = "[[arithmetic.overrides]]\nops = ['Conv']\nwhen = { weight_slot = %d }\n%s\n"
    text = FLAT + one % (1, "scales_in_turn = true")
    with pytest.raises(TargetError, match="for Conv changes part of what others before it"):
        load_target(write(tmp_path, text + one % (0, "fused_bias = true")))
    given = "scales_in_turn = false\nfused_bias = true"
    assert len(load_target(write(tmp_path, text + one % (0, given))).arithmetic.overrides) == 2
