"""How Tengine spells functions of one tensor: one table, which the reader and the writer follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from intact.formats.tengine.tmfile.layout import Element
from intact.ops import functions
from intact.ops.functions import Unary


@dataclass(frozen=True)
class Spelling:
    """An operator of Tengine that computes a function.

    Attributes:
        function: The function.
        name: Tengine's name of the operator.
        without_kernel: Elements for which Tengine has no kernel.
        options: Tengine's names of options, with ours.
        constants: Options that are always the same; Tengine's kernels leave them aside.
        is_written: It is; otherwise it is only read.
        of_one_image: Its kernels take the lengths of one image, whatever the tensor has.
    """

    function: Unary
    name: str
    without_kernel: tuple[Element, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    is_written: bool = True
    of_one_image: bool = False


_NO_INT8 = (Element.INT8,)

SPELLINGS = (
    Spelling(functions.sigmoid, "Sigmoid"),
    Spelling(functions.sigmoid, "Logistic", is_written=False),
    Spelling(functions.tanh, "Tanh", _NO_INT8),
    Spelling(functions.leaky_relu, "ReLu", options={"negative_slope": "alpha"}),
    Spelling(functions.elu, "Elu", _NO_INT8, options={"alpha": "alpha"}),
    Spelling(
        functions.hard_sigmoid, "HardSigmoid", _NO_INT8, options={"alpha": "alpha", "beta": "beta"}
    ),
    Spelling(functions.hard_swish, "HardSwish", _NO_INT8, constants={"alpha": 1 / 6, "beta": 0.5}),
    Spelling(functions.mish, "Mish", _NO_INT8, of_one_image=True),
    Spelling(functions.softplus, "Softplus", (Element.INT8, Element.UINT8), of_one_image=True),
)

WRITTEN: Mapping[Unary, Spelling] = {each.function: each for each in SPELLINGS if each.is_written}

READ: Mapping[str, Spelling] = {each.name: each for each in SPELLINGS if each.name != "ReLu"}
"""By Tengine's name; ReLu is a Relu where its slope is 0."""
