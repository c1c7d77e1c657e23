"""The numbers of slots, operators and types are those of the schema."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from ai_edge_litert import schema_py_generated as schema

from intact.formats.tflite import spellings, writer
from intact.formats.tflite.reader.common import READERS
from intact.formats.tflite.reader.schema import OPERATORS, OPTIONS, TEXT, Element, Fused, Padding

SOURCE = Path(str(schema.__file__)).read_text(encoding="utf-8")

_TABLES = {
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "SOFTMAX": "SoftmaxOptions",
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "DIV": "DivOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "CONCATENATION": "ConcatenationOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "PACK": "PackOptions",
    "UNPACK": "UnpackOptions",
    "GATHER": "GatherOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "GELU": "GeluOptions",
    "CONV_3D": "Conv3DOptions",
    "CUMSUM": "CumsumOptions",
    "CALL_ONCE": "CallOnceOptions",
    "VAR_HANDLE": "VarHandleOptions",
    "WHILE": "WhileOptions",
}
_FIELDS = {
    "fused": "FusedActivationFunction",
    "filter_w": "FilterWidth",
    "filter_h": "FilterHeight",
    "dilation_d": "DilationDFactor",
    "dilation_w": "DilationWFactor",
    "dilation_h": "DilationHFactor",
}
_FORMS = {
    "Int8": "<b",
    "Int32": "<i",
    "Bool": "<?",
    "Float32": "<f",
    "UOffsetTRelative": TEXT,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option_slots_are_those_of_the_schema(name: str) -> None:
    for field, ours in OPTIONS[name].items():
        called = _FIELDS.get(field, "".join(part.capitalize() for part in field.split("_")))
        pattern = (
            rf"def {_TABLES[name]}Add{called}\(builder, \w+\):\s+"
            r"builder\.Prepend(\w+)Slot\((\d+), [^,]+, ([^)]+)\)"
        )
        found = re.search(pattern, SOURCE)
        assert found is not None, (name, field)
        assert (ours.slot, ours.form) == (int(found[2]), _FORMS[found[1]])
        assert ours.default == float(found[3])


def test_operator_codes_are_those_of_the_schema() -> None:
    theirs = {
        code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
    }
    assert {code: theirs[code] for code in OPERATORS} == dict(OPERATORS)
    import_module("intact.formats.tflite.reader.operators")  # registers the readers
    assert len(READERS) > 50
    assert set(READERS) <= set(OPERATORS.values())


def test_what_is_written_is_read() -> None:
    tables = [rows for rows in vars(spellings).values() if isinstance(rows, tuple)]
    rows = [row for table in tables for row in table if isinstance(row, spellings.Spelling)]
    files = (Path(writer.__path__[0])).glob("*.py")
    words = {word for file in files for word in re.findall(r'"(\w+)"', file.read_text("utf-8"))}
    written = {row.code for row in rows if row.is_written} | words & set(
        vars(schema.BuiltinOperator)
    )
    import_module("intact.formats.tflite.reader.operators")  # registers the readers
    assert len(written) > 60
    assert written <= set(READERS)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Element, schema.TensorType),
        (Fused, schema.ActivationFunctionType),
        (Padding, schema.Padding),
    ],
)
def test_enumerations_are_those_of_the_schema(ours: type, theirs: type) -> None:
    members = {each.name: int(each) for each in ours}  # type: ignore[attr-defined]
    assert members == {name: getattr(theirs, name) for name in members}
