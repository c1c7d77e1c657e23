"""The written files: what they declare, what is refused, and that no name gets out of its place.

Shapes that a model leaves open are computed; names of hostile models stay names.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.errors import ExportError
from intact.formats.c.files import OpenShapes, static_shapes
from intact.formats.c.library import RESERVED, Identifiers, comment, identifier
from intact.formats.c.run import CRuntime
from intact.formats.c.write import write_c
from intact.ops import functions
from intact.program import Program, Tensor
from intact.program import operations as ops
from intact.program.operations import Binary
from intact.targets import Arithmetic, FloatOnce, FloatType, PairSaturate, Wrap, ZeroPointOrder
from tests.formats.c import cases, window_cases
from tests.formats.c.random_programs import random_program
from tests.formats.c.test_kernels import SANITIZED, STRICT
from tests.program.one_step import int8, int32, one_step, uint8

SMALL = cases.convolutions(cases.DOUBLE, cases.Scales())["plain"]


def refusal(program: Program) -> str:
    with pytest.raises(ExportError) as caught:
        write_c(program)
    return str(caught.value)


def with_arithmetic(**fields: object) -> Program:
    arithmetic = msgspec.structs.replace(cases.DOUBLE, **fields)
    return SMALL.with_steps(tuple(replace(step, arithmetic=arithmetic) for step in SMALL.steps))


def test_equal_programs_give_equal_bytes() -> None:
    assert write_c(random_program(3)).files == write_c(random_program(3)).files


def test_the_header_says_what_callers_need() -> None:
    header = write_c(SMALL, "net", target="some-chip").files["net.h"]
    for line in (
        "#define NET_ARENA_BYTES 0",
        "#define NET_IN0_SIZE 60",
        "#define NET_IN0_SCALE 0.05f",
        "#define NET_IN0_ZERO_POINT (3)",
        "#define NET_OUT0_SIZE 120",
        "void net_run(const int8_t *in0, int8_t *out0);",
    ):
        assert line in header.splitlines()
    assert "some-chip" in header
    assert "net_run(in0, out0);" in header


def test_notes_and_macros_count_memory() -> None:
    written = write_c(random_program(7))
    assert f"#define MODEL_ARENA_BYTES {written.arena_bytes}\n" in written.files["model.h"]
    assert str(written.arena_bytes) in written.notes[0].message
    assert str(written.flash_bytes) in written.notes[0].message
    layer = write_c(SMALL)
    assert layer.flash_bytes == 6 * 27 + 6 * 4 * 3 + 4 * layer.files["model.c"].count("\n    .")


def test_weights_lie_as_cmsis_nn_wants_them() -> None:
    program = cases.convolutions(cases.DOUBLE, cases.Scales())["depthwise"]
    weight = program.steps[0].inputs[1]
    assert weight is not None
    assert weight.data is not None
    first = weight.data[:, 0, 0, 0]  # the channels of one tap lie together
    data = write_c(program).files["model_data.h"]
    numbers = data.partition("_weights[45] = {")[2].split("}")[0].replace("\n", " ").split(",")
    assert [int(each) for each in numbers[:5]] == first.tolist()
    assert ".input_offset = -3," in write_c(program).files["model.c"]
    assert ".output_offset = -5," in write_c(program).files["model.c"]


def test_hostile_names_stay_in_their_places() -> None:
    programs = {}
    for index, name in enumerate(HOSTILE):
        program = random_program(index, 3)
        steps = tuple(replace(step, name=name) for step in program.steps)
        programs[f"{index}{name}"] = program.with_steps(steps)
    joined = cases.joined(programs)
    named = dict(zip(HOSTILE, joined.inputs.values(), strict=False))
    rest = list(joined.inputs.items())[len(HOSTILE) :]
    outputs = {f"{name}*/": tensor for name, tensor in joined.outputs.items()}
    program = Program(named | dict(rest), outputs, joined.steps)
    fed = cases.feeds(program, 2)
    with CRuntime(write_c(program, "*/ int"), flags=STRICT) as runtime:
        found = runtime.run(fed)
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        assert np.array_equal(found[name], codes), name


@pytest.mark.parametrize("name", ["int", "string", "STDINT", "a b", "*/", "copy", "9"])
def test_prefixes_become_identifiers(name: str) -> None:
    with CRuntime(write_c(SMALL, name), flags=STRICT) as runtime:
        assert runtime.warnings == ""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_header_is_read_by_cpp(tmp_path: Path) -> None:
    written = write_c(SMALL)
    (tmp_path / "model.h").write_text(written.files["model.h"])
    (tmp_path / "a.cpp").write_text('#include "model.h"\nint main() { return MODEL_IN0_SIZE; }\n')
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "a.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_no_kernel_needs_more_than_memcpy_and_memset() -> None:
    everything = cases.joined(
        {
            **cases.convolutions(cases.DOUBLE, cases.Scales()),
            **cases.pairs(cases.DOUBLE, cases.Scales()),
            **window_cases.windows(cases.DOUBLE, cases.Scales()),
            **window_cases.moves(),
            **window_cases.functions(),
        }
    )
    source = write_c(everything).files["model.c"]
    included = [line for line in source.splitlines() if line.startswith("#include")]
    assert included == ['#include "model.h"', "#include <string.h>", '#include "model_data.h"']
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    assert not set(re.findall(r"\w+", code)) & {"malloc", "free", "float", "double", "printf"}
    assert set(re.findall(r"\bmem\w+(?=\()", code)) == {"memcpy", "memset"}
    assert not re.search(r"@[A-Z]", source)
    assert [line for line in code.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"requantize": FloatOnce()}, "float32"),
        ({"requantize": FloatOnce(precision=FloatType.FLOAT64)}, "float64"),
        ({"accumulator": PairSaturate(pair_bits=16)}, "pairs"),
        ({"accumulator": Wrap(24)}, "24 bits"),
    ],
)
def test_other_arithmetic_is_refused(fields: dict[str, object], reason: str) -> None:
    message = refusal(with_arithmetic(**fields))
    assert reason in message
    assert "'step'" in message


def shifting(**fields: object) -> Arithmetic:
    return msgspec.structs.replace(cases.SHIFT, **fields)


def test_shifts_need_powers_of_two() -> None:
    program = cases.convolutions(cases.SHIFT, cases.Scales())["plain"]
    assert "no power of two" in refusal(program)
    early = shifting(zero_point=ZeroPointOrder.BEFORE_ROUNDING)
    powers = cases.convolutions(early, cases.Scales(powers=True))["plain"]
    assert "zero point is added before rounding" in refusal(powers)


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_AWAY_FROM_ZERO])
def test_shifts_round_as_the_target_says(rounding: Rounding) -> None:
    scales = cases.Scales(powers=True)
    arithmetic = shifting(rounding=rounding)
    some = {
        "plain": cases.convolutions(arithmetic, scales)["plain"],
        **{name: cases.pairs(arithmetic, scales)[name] for name in ("add_same", "mul_channel")},
        **{
            name: window_cases.windows(arithmetic, scales)[name]
            for name in ("mean_pool", "linear_half")
        },
    }
    program = cases.joined(some)
    fed = cases.feeds(program, 30)
    with CRuntime(write_c(program), flags=SANITIZED) as runtime:
        found = runtime.run(fed)
    for name, codes in IntegerEngine(program).run(fed).outputs.items():
        assert np.array_equal(found[name], codes), name


def test_a_bias_of_its_own_scale_is_shifted() -> None:
    weights = np.arange(-9, 9, dtype=np.int8).reshape(2, 9)
    bias = np.array([40, -3], np.int32)

    def dense(codes: np.ndarray, scale: float) -> Program:
        slots: list[Any] = [((None, 9), int8(0.25)), (weights, int8(0.125)), (codes, int32(scale))]
        return one_step(ops.FullyConnected(), cases.SHIFT, slots, [((None, 2), int8(2.0))])

    coarse, fine = dense(bias, 0.25), dense(bias * 8, 0.03125)
    fed = cases.feeds(fine, 50)
    with CRuntime(write_c(coarse)) as one, CRuntime(write_c(fine)) as other:
        found = one.run(fed)["out0"]
        assert np.array_equal(found, other.run(fed)["out0"])
    assert np.array_equal(found, IntegerEngine(fine).run(fed).outputs["out0"])
    assert "finer than the sums" in refusal(dense(bias, 2.0**-9))


def test_all_that_is_refused_is_told_at_once() -> None:
    other = Tensor("z", (None, 4), uint8(0.1))
    floats = Tensor("f", (None, 4))
    x, y = ((None, 4), int8(0.1)), ((None, 4), int8(0.2))
    refused: list[tuple[ops.Operation, int]] = [
        (ops.Elementwise(Binary.DIV), 2),
        (ops.Softmax(1), 1),
        (ops.Softmax(1, log=True), 1),
    ]
    steps = [one_step(each, cases.DOUBLE, [x] * count, [x]) for each, count in refused]
    steps.append(one_step(ops.Concat(1), cases.DOUBLE, [x, y], [((None, 8), int8(0.1))]))
    program = cases.joined({f"n{at}": each for at, each in enumerate(steps)})
    program = replace(program, inputs={**program.inputs, "z": other, "f": floats})
    message = refusal(program)
    for word in (
        "n0.step",
        "n1.step",
        "n2.step",
        "n3.step",
        "'z' is uint8",
        "'f' is float",
    ):
        assert word in message
    assert "remedy" not in message or "(" in message


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((None, None, 4), "open (?x?x4)"),
        ((None, 0, 4), "0 elements"),
        ((1, 2**16, 2**15), "elements"),
    ],
)
def test_shapes_must_be_known_and_small(shape: tuple[int | None, ...], reason: str) -> None:
    x = int8(0.1)
    negate = ops.Function(functions.negative)
    message = refusal(one_step(negate, cases.DOUBLE, [(shape, x)], [(shape, x)]))
    assert reason in message
    assert "tensor 'in0'" in message


EVERY = {
    **cases.convolutions(cases.DOUBLE, cases.Scales()),
    **cases.pairs(cases.DOUBLE, cases.Scales()),
    **window_cases.windows(cases.DOUBLE, cases.Scales()),
    **window_cases.moves(),
    **window_cases.functions(),
}


def opened(program: Program) -> Program:
    """Return a one-step program whose results have only open axes."""
    (step,) = program.steps
    outputs = tuple(replace(t, shape=(None,) * len(t.shape)) for t in step.outputs)
    named = {tensor.name: tensor for tensor in outputs}
    return replace(program, outputs=named, steps=(replace(step, outputs=outputs),))


@pytest.mark.parametrize("name", list(EVERY))
def test_shapes_are_those_of_the_engine(name: str) -> None:
    program = opened(EVERY[name])
    fed = {key: codes[:1] for key, codes in cases.feeds(program, 2).items()}
    results = IntegerEngine(program).run(fed).outputs
    shapes = static_shapes(program)
    assert {key: shapes[key] for key in results} == {key: a.shape for key, a in results.items()}


def test_a_batch_that_moved_to_another_axis() -> None:
    x = int8(0.1)
    fold = one_step(ops.Reshape((3, -1, 4)), cases.DOUBLE, [((None, 12), x)], [((3, None, 4), x)])
    assert static_shapes(fold)["out0"] == (3, 1, 4)


def test_shapes_that_contradict_each_other() -> None:
    x = int8(0.1)
    wrong = one_step(ops.Transpose((0, 2, 1)), cases.DOUBLE, [((None, 3, 4), x)], [((1, 3, 4), x)])
    with pytest.raises(OpenShapes) as caught:
        static_shapes(wrong)
    assert caught.value.tensors == {"out0": "it is 1x4x3, not 1x3x4"}


def test_windows_that_are_not_as_many_as_declared() -> None:
    """ONNX counts a last window that lies all behind the data where a pool rounds up."""
    x = int8(0.1)
    pool = ops.Pool(ops.PoolKind.MAX, (2, 2), (3, 3), ((0, 0), (0, 1)))
    wrong = one_step(pool, cases.DOUBLE, [((None, 9, 7, 3), x)], [((None, 4, 3, 3), x)])
    with pytest.raises(OpenShapes) as caught:
        static_shapes(wrong)
    assert caught.value.tensors == {"out0": "it is 1x3x3x3, not ?x4x3x3"}


HOSTILE = [
    "*/ int main(void) { return 1; } /*",
    'a"); system("true',
    "line\nbreak",
    "tail\\",
    "what??/",
    "int",
    "Int",
    "NULL",
    "int8_t",
    "copy",
    "memory",
    "arena",
    "arena_bytes",
    "model_run",
    "convolution_params",
    "#define x",
    "größe",
    "",
    " ",
    "7up",
    "x" * 300,
    "a/b",
    "a.b",
    "A_B",
]


@given(st.text() | st.sampled_from(HOSTILE))
def test_identifiers_are_identifiers(name: str) -> None:
    text = identifier(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text)
    assert text.lower() not in RESERVED
    assert not text.endswith("_t")
    assert "__" not in text
    assert len(text) <= 45


@given(st.lists(st.text() | st.sampled_from(HOSTILE), max_size=30))
def test_identifiers_are_unique_in_either_case(names: list[str]) -> None:
    given_out = Identifiers(["taken"])
    found = [given_out.unique(name, "_x").lower() for name in [*names, *names]]
    assert len(set(found)) == len(found)


@given(st.text() | st.sampled_from(HOSTILE))
def test_comments_do_not_end(text: str) -> None:
    written = comment(text)
    assert re.fullmatch(r"[ -~]*", written)
    assert not re.search(r"\*|\\|\?|\n", written)
    assert len(written) <= 160
