"""Lists the operators of a ``.tmfile``: their numbers, options, and what these mean.

A file names an operator by its number, and holds its options as a C struct. `OPERATORS` has both by
name: ``OperatorKind(20, record("negative_slope:f32"))`` is number 20 with one float32, and a field
without a type, as in ``record("axis")``, is an int32. The enums above it are values of such fields.

Source: Tengine's public header ``tm2_format.h`` and its operator prototypes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from intact.formats.tengine.tmfile.file import Record, record


class PoolMethod(enum.IntEnum):
    """``method`` of Pooling."""

    MAX = 0
    AVERAGE = 1


COUNT_PADDING = 0x10
"""Bit of Pooling's ``flavor``: an average counts the padding."""


class Flavor(enum.IntEnum):
    """How Pooling's ``flavor`` gives the size of its output, apart from ``COUNT_PADDING``."""

    FLOOR = 0
    """The first padding stands at both ends; windows that do not fit are dropped."""
    CAFFE = 1
    """As `FLOOR`, but the last window may reach over the edge."""
    TOTAL = 2
    """The first padding is that of both ends together; the odd one goes to the end."""


class Activation(enum.IntEnum):
    """The activation that Convolution applies to its sums."""

    NONE = -1
    RELU = 0
    RELU6 = 6


class Eltwise(enum.IntEnum):
    """``type`` of Eltwise; only these kinds are read."""

    PROD = 0
    SUM = 2
    SUB = 4
    MAX = 6
    DIV = 10
    EXP = 12
    SQRT = 13


NEAREST, BILINEAR = 1, 2
"""``type`` of Interp."""

ABSENT_AXIS = -2
"""An axis of Squeeze or Reduction that is not given."""


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator: its number and its options."""

    number: int
    options: Record | None = None


_PADS = "pad_top pad_left pad_bottom pad_right"

OPERATORS: Mapping[str, OperatorKind] = MappingProxyType(
    {
        "BatchNormalization": OperatorKind(
            1, record("rescale_factor:f32 epsilon:f32 caffe_flavor")
        ),
        "Concat": OperatorKind(3, record("axis")),
        "Const": OperatorKind(4),
        "Convolution": OperatorKind(
            5,
            record(
                "kernel_h kernel_w stride_h stride_w dilation_h dilation_w "
                f"input_channel output_channel group activation {_PADS}"
            ),
        ),
        "Deconvolution": OperatorKind(
            6,
            record(
                "output_channel kernel_h kernel_w stride_h stride_w "
                "pad_left pad_top pad_right pad_bottom dilation_h dilation_w group activation "
                "output_pad_h output_pad_w"
            ),
        ),
        "Dropout": OperatorKind(8),
        "Eltwise": OperatorKind(
            9, record("type:u32 caffe_flavor:i32 shift:f32 power:f32 scale:f32")
        ),
        "Flatten": OperatorKind(10, record("axis end_axis")),
        "FullyConnected": OperatorKind(11, record("output_channel")),
        "InputOp": OperatorKind(12),
        "Permute": OperatorKind(15, record("flag order_0 order_1 order_2 order_3")),
        "Pooling": OperatorKind(
            16,
            record(f"method:u32 kernel_h kernel_w stride_h stride_w is_global flavor {_PADS}"),
        ),
        "PReLU": OperatorKind(17),
        "ReLu": OperatorKind(20, record("negative_slope:f32")),
        "ReLu6": OperatorKind(21),
        "Reshape": OperatorKind(23, record("is_mxnet reverse shape:list is_onnx")),
        "Scale": OperatorKind(26, record("axis num_axes bias_term")),
        "Slice": OperatorKind(
            27,
            record(
                "axis slice_points:list begins:list sizes:list "
                "is_caffe is_mxnet is_onnx begin end step"
            ),
        ),
        "Softmax": OperatorKind(28, record("axis")),
        "Split": OperatorKind(
            29, record("axis split_dim is_caffe:u8 is_onnx:u8 _:pad2 sizes:list")
        ),
        "Gemm": OperatorKind(31, record("alpha:f32 beta:f32 trans_a trans_b")),
        "Logistic": OperatorKind(33),
        "Tanh": OperatorKind(36),
        "Sigmoid": OperatorKind(37),
        "Squeeze": OperatorKind(38, record("dim_0 dim_1 dim_2 dim_3")),
        "Pad": OperatorKind(
            40,
            record("n_0 n_1 c_0 c_1 h_0 h_1 w_0 w_1 mode value:f32"),
        ),
        "Reduction": OperatorKind(45, record("dim_0 dim_1 dim_2 dim_3 type keepdim")),
        "Maximum": OperatorKind(46),
        "Minimum": OperatorKind(47),
        "Upsample": OperatorKind(51, record("scale:f32")),
        "Resize": OperatorKind(54, record("scale_w:f32 scale_h:f32 type")),
        "ExpandDims": OperatorKind(60, record("axis")),
        "Noop": OperatorKind(62),
        "HardSigmoid": OperatorKind(64, record("alpha:f32 beta:f32")),
        "HardSwish": OperatorKind(70, record("alpha:f32 beta:f32")),
        "Interp": OperatorKind(
            71, record("type scale_w:f32 scale_h:f32 output_w:i32 output_h:i32")
        ),
        "Elu": OperatorKind(73, record("alpha:f32")),
        "Transpose": OperatorKind(77, record("order:list")),
        "Clip": OperatorKind(87, record("max:f32 min:f32")),
        "Unsqueeze": OperatorKind(88, record("axes:list")),
        "Mish": OperatorKind(97),
        "Softplus": OperatorKind(102),
    }
)
"""The operators that are read or written, by Tengine's names; options in the order of the file."""

NAMES: Mapping[int, str] = MappingProxyType(
    {kind.number: name for name, kind in OPERATORS.items()}
    | {
        0: "Accuracy",
        2: "BilinearResize",
        7: "DetectionOutput",
        13: "LRN",
        14: "Normalize",
        18: "PriorBox",
        19: "Region",
        22: "Reorg",
        24: "ROIPooling",
        25: "RPN",
        30: "DetectionPostProcess",
        32: "Generic",
        34: "LSTM",
        35: "RNN",
        39: "Fused.BNScaleReLu",
        41: "StridedSlice",
        42: "ArgMax",
        43: "ArgMin",
        44: "TopKV2",
        48: "GRU",
        49: "Addn",
        50: "SwapAxis",
        52: "SpaceToBatchND",
        53: "BatchToSpaceND",
        55: "ShuffleChannel",
        56: "Crop",
        57: "ROIAlign",
        58: "PSROIPooling",
        59: "Unary",
        61: "Bias",
        63: "Threshold",
        65: "Embedding",
        66: "InstanceNorm",
        67: "MVN",
        68: "Absval",
        69: "Cast",
        72: "Selu",
        74: "BroadMul",
        75: "Logical",
        76: "Gather",
        78: "Comparison",
        79: "SpaceToDepth",
        80: "DepthToSpace",
        81: "Reverse",
        82: "SparseToDense",
        83: "Ceil",
        84: "SquaredDifference",
        85: "Round",
        86: "ZerosLike",
        89: "ReduceL2",
        90: "Mean",
        91: "MatMul",
        92: "Expand",
        93: "Scatter",
        94: "Shape",
        95: "Where",
        96: "Tile",
        98: "L2Pool",
        99: "LogSoftmax",
        100: "ReLU1",
        101: "L2Normalization",
        103: "Reciprocal",
        105: "SpatialTransformer",
    }
)
"""The name of each number, also of operators that are not read: messages name those too."""


def operator_name(number: int) -> str:
    """Return how messages call a kind of operator.

    >>> operator_name(5), operator_name(13), operator_name(999)
    ('Convolution', 'LRN', 'operator 999')
    """
    return NAMES.get(number, f"operator {number}")
