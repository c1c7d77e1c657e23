"""Makes OpenVINO's own files, ``.xml`` and ``.bin``, of the ONNX model.

Weights become int8 there: ``bin`` is a quarter of the ONNX model. Codes that fit 4 bits stand two a
byte, behind a Convert to 8 bits that OpenVINO computes when it loads the model. Compiled, both
files give identical bits (measured with openvino 2026.4.1 on three convolutional nets and a
transformer), but for weights without a sign: only where they are integers already does it compute
with integers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact._extras import install_hint
from intact.errors import ExportError, MissingExtraError
from intact.formats.base.maker import PRODUCER
from intact.graph import save_model

XML_FILE, BIN_FILE = "model.xml", "model.bin"
"""What the files are called in a result's folder."""

_LONGEST_REASON = 300

_WORTH_PACKING = 1024
"""Codes from which on half their bytes are more than what a Convert adds to ``model.xml``."""


def intermediate_files(model: ir.Model, *, exact: bool = False) -> dict[str, bytes]:
    """Return the content of ``model.xml`` and ``model.bin``; the same model gives the same bytes.

    Args:
        model: ONNX with FakeQuantize. Its weights may be larger than 2 GiB.
        exact: Say in the file that activations beside compressed weights are floats, which OpenVINO
            would quantize else.

    Raises:
        ExportError: OpenVINO cannot read the model.
        MissingExtraError: It is not whole.
    """
    try:
        import openvino  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError(
            f"openvino cannot be imported ({error})", remedy=install_hint("openvino")
        ) from error
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "model.onnx"
        # Through a file, as weights beyond protobuf's limit lie beside it.
        save_model(model, source)
        try:
            read = openvino.Core().read_model(source)
            _compress_weights(read)
            # Behind the compression, which makes the integers that are packed.
            _pack_weights(read, in_blocks=exact)
            _name_in_order(read, set())
            for key in sorted(model.metadata_props):
                if key.startswith(f"{PRODUCER}."):
                    read.set_rt_info(model.metadata_props[key], key.split("."))
            if exact:
                read.set_rt_info("0", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
            # By default all floats would be rounded to float16.
            openvino.save_model(read, folder / XML_FILE, compress_to_fp16=False)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            raise ExportError(
                f"OpenVINO cannot read the model: {reason}",
                remedy="change the float model, or take another target",
            ) from error
        return {each: (folder / each).read_bytes() for each in (XML_FILE, BIN_FILE)}


def _compress_weights(model: Any) -> None:
    """Let weights be stored as integers, where this OpenVINO has the function for it."""
    try:
        from openvino import _offline_transformations as transformations
    except ImportError:
        return
    compress = getattr(transformations, "compress_quantize_weights_transformation", None)
    if compress is not None:
        compress(model)


def _pack_weights(model: Any, *, in_blocks: bool) -> None:
    """Store codes that fit 4 bits two a byte, behind a Convert to the bytes that they were.

    A convolution on a constant of 4 bits itself would run in floats (measured: 2026.4.1). Weights
    in blocks are meant to, and their pattern has one Convert alone.
    """
    import openvino  # type: ignore[import-untyped,unused-ignore]
    from openvino import opset1

    narrow = {"i8": (openvino.Type.i4, -8, 7), "u8": (openvino.Type.u4, 0, 15)}
    for each in model.get_ordered_ops():
        kind = each.get_output_element_type(0).get_type_name() if _is_constant(each) else ""
        if kind not in narrow:
            continue
        packed, low, high = narrow[kind]
        codes = np.asarray(each.get_data())
        if codes.size < _WORTH_PACKING or codes.min() < low or codes.max() > high:
            continue
        readers = list(each.output(0).get_target_inputs())
        tensor = openvino.Tensor(packed, list(codes.shape))
        np.asarray(tensor.data).reshape(-1).view(np.uint8)[:] = _two_a_byte(codes)
        constant = openvino.op.Constant(tensor)
        widened = None
        for reader in readers:
            # The Convert of a compressed weight's pattern widens 4 bits itself.
            if in_blocks and reader.get_node().get_type_name() == "Convert":
                reader.replace_source_output(constant.output(0))
                continue
            widened = widened or opset1.convert(constant, kind)
            reader.replace_source_output(widened.output(0))


def _is_constant(operation: Any) -> bool:
    return bool(operation.get_type_name() == "Constant")


def _two_a_byte(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pack codes of 4 bits, the first of two in the lower half of a byte.

    >>> _two_a_byte(np.array([1, -1, 3])).tolist()
    [241, 3]
    """
    halves = np.resize(codes.reshape(-1).astype(np.uint8) & 0xF, codes.size + codes.size % 2)
    # `resize` repeats the codes, and the half byte left over has to be the same each time.
    halves[codes.size :] = 0
    return np.asarray(halves[0::2] | halves[1::2] << 4, np.uint8)


def _name_in_order(model: Any, taken: set[str]) -> None:
    """Name what has no name of its own by its place.

    OpenVINO numbers it through everything that the process ever made.
    """
    listed = list(model.get_ordered_ops())
    taken |= {each.get_friendly_name() for each in listed if not _is_unnamed(each)}
    for number, each in enumerate(listed):
        if _is_unnamed(each):
            name = f"{each.get_type_name()}_{number}"
            while name in taken:
                name += "_"
            taken.add(name)
            each.set_friendly_name(name)
        for body in _bodies(each):
            _name_in_order(body, taken)


def _bodies(operation: Any) -> list[Any]:
    match operation.get_type_name():
        case "If":
            return [operation.get_function(0), operation.get_function(1)]
        case "Loop" | "TensorIterator":
            return [operation.get_function()]
    return []


def _is_unnamed(operation: Any) -> bool:
    # Without a name of its own an operation is called by its number in the process.
    return bool(operation.get_friendly_name() == operation.get_name())
