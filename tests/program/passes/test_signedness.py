from __future__ import annotations

import numpy as np

from intact.program import Encoding, Program, Tensor
from intact.program.operations import Binary, Elementwise, Quantize
from intact.program.passes.encodings import signed
from intact.targets import Arithmetic, FloatOnce
from tests.program.one_step import int8, one_step, uint8

ARITHMETIC = Arithmetic(requantize=FloatOnce())
CODES = np.array([0, 1, 127, 128, 255], np.uint8)


def real(tensor: Tensor) -> np.ndarray:
    assert tensor.encoding is not None
    assert tensor.data is not None
    codes = tensor.data.astype(np.int64)
    return np.asarray((codes - tensor.encoding.zero_point) * tensor.encoding.scale)


def test_signed_keeps_real_numbers() -> None:
    encoding = uint8(0.1, 200)
    constant = Tensor("c", (5,), encoding, CODES)
    found = signed(Program({"c": constant}, {}, ())).inputs["c"]
    assert found.data is not None
    assert found.encoding is not None
    assert found.data.dtype == np.int8
    assert found.data.tolist() == [-128, -127, -1, 0, 127]
    assert (found.encoding.quant_min, found.encoding.quant_max) == (-128, 127)
    assert found.encoding.zero_point == 72
    assert found.encoding.scale == encoding.scale
    np.testing.assert_array_equal(real(found), real(constant))


def test_every_scale_of_a_channel_is_shifted() -> None:
    scale, zero = np.ones(2, np.float32), np.array([128, 255])
    encoding = Encoding(scale, zero, 0, 255, axis=1)
    found = signed(Program({"c": Tensor("c", (5, 2), encoding)}, {}, ())).inputs["c"].encoding
    assert found is not None
    assert found.zero_point.tolist() == [0, 127]
    assert found.axis == 1


def test_other_codes_and_floats_stay() -> None:
    narrow = Encoding(np.ones((), np.float32), np.zeros((), np.int64), 0, 15)
    tensors = {
        name: Tensor(name, (2,), encoding)
        for name, encoding in {"float": None, "int8": int8(0.1), "uint4": narrow}.items()
    }
    assert signed(Program(tensors, {}, ())).inputs == tensors


def test_steps_keep_sharing_their_tensors() -> None:
    program = one_step(
        Elementwise(Binary.ADD), ARITHMETIC, [((5,), uint8(0.1, 3)), (CODES, uint8(0.2, 4))],
        [((5,), uint8(0.3, 5))],
    )  # fmt: skip
    found = signed(program)
    (step,) = found.steps
    assert step.inputs[0] is found.inputs["in0"]
    assert step.outputs[0] is found.outputs["out0"]
    constant = step.inputs[1]
    assert constant is not None
    assert constant.data is not None
    assert constant.data.dtype == np.int8
    assert [t.encoding.zero_point for t in found.tensors() if t.encoding] == [-125, -124, -123]


def test_quantizers_take_the_new_codes() -> None:
    program = one_step(Quantize(), ARITHMETIC, [((5,), None)], [((5,), uint8(0.1, 128))])
    encoding = signed(program).outputs["out0"].encoding
    assert encoding is not None
    assert encoding.zero_point == 0
    assert encoding.dtype == np.int8
    assert signed(program).inputs["in0"].encoding is None
