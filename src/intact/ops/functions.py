"""Functions of one tensor, element by element: one typed function each is all that is declared.

The signature has the operator's options with ONNX's defaults, the body computes it in NumPy; the
decorator adds what follows from neither. Lowering, the integer engine's tables of codes, rules of
training, the op table and signs are derived from it. To add an operator, write its function here,
and its name in the files of the targets that have it::

    @operator(low=0.0, high=1.0, is_formula=True)
    def hard_sigmoid(x: Floats, alpha: float = 0.2, beta: float = 0.5) -> Floats:
        return (alpha * x + beta).clip(0, 1)

Bodies get float32 and give float32. They compute in float64 and round once, but where a runtime's
float32 arithmetic is known and its codes depend on it. Where a function is not defined it is NaN or
infinite. Source of all definitions: the ONNX operator specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from intact._lazy import Module

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float32]
    Doubles: TypeAlias = npt.NDArray[np.float64]
else:  # what is declared is read by commands that compute nothing
    np = Module("numpy")

Option: TypeAlias = float | str
"""The value of an attribute."""


@dataclass(frozen=True, eq=False)
class Unary:
    """A function of one tensor, element by element.

    Attributes:
        name: The type of ONNX's operator, ``HardSigmoid``; where ONNX has none, a name like it.
        body: Computes it; called through the instance.
        defaults: The options by name, in the order of the signature, with ONNX's defaults.
        low: No result is less.
        high: No result is larger.
        is_activation: The op table calls it an activation, not an operation element by element.
        is_operator: ONNX has it; otherwise several nodes stand for it.
        since: The opset from which ONNX has it; normalized models are of 11 or a newer one.
        is_formula: Its body takes only numbers times, plus and ``clip`` of its operand. So it
            computes tensors of torch too, and writes a graph of what those are.
    """

    name: str
    body: Callable[..., Floats]
    defaults: Mapping[str, Option]
    low: float
    high: float
    is_activation: bool
    is_operator: bool
    since: int
    is_formula: bool

    def __call__(self, x: npt.ArrayLike, *options: Option) -> Floats:
        """Compute it in float32, any shape, without warnings; options in order, or none."""
        # Attributes are float32: a body that computes in float64 has to widen the rounded number.
        numbers = [np.float32(o) if isinstance(o, float | int) else o for o in options]
        with np.errstate(all="ignore"):
            return np.asarray(self.body(np.asarray(x, np.float32), *numbers), np.float32)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<function {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # By name, so that what comes out of a copy is the same object: functions are compared by
        # identity.
        return _function_of_name, (self.name,)


_DECLARED: dict[str, Unary] = {}

FUNCTIONS: Mapping[str, Unary] = MappingProxyType(_DECLARED)
"""All of them by name."""


def _function_of_name(name: str) -> Unary:
    return _DECLARED[name]


def operator(
    *,
    name: str = "",
    low: float = -math.inf,
    high: float = math.inf,
    is_activation: bool = True,
    is_operator: bool = True,
    since: int = 11,
    is_formula: bool = False,
) -> Callable[[Callable[..., Floats]], Unary]:
    """Declare the decorated function; its name in CamelCase is the operator's, unless given."""

    def declare(body: Callable[..., Floats]) -> Unary:
        camel = "".join(part.capitalize() for part in body.__name__.split("_"))
        code = body.__code__
        # `strict` below refuses an option without a default.
        names, values = code.co_varnames[1 : code.co_argcount], body.__defaults__ or ()
        defaults = MappingProxyType(dict(zip(names, values, strict=True)))
        facts = (low, high, is_activation, is_operator, since, is_formula)
        declared = Unary(name or camel, body, defaults, *facts)
        _DECLARED[declared.name] = declared
        return declared

    return declare


def _double(x: Floats) -> Doubles:
    return x.astype(np.float64)


def _once(values: Doubles) -> Floats:
    return values.astype(np.float32)


def _each(function: Callable[[float], float], x: Floats) -> Floats:
    """Apply a scalar function in float64: NumPy has no error function."""
    flat = [function(float(value)) for value in x.reshape(-1)]
    return _once(np.array(flat, np.float64)).reshape(x.shape)


# ---- activations ---------------------------------------------------------------------------------


@operator(is_operator=False)
def clamp(x: Floats) -> Floats:
    """Relu or Clip; the bounds of the operation say which."""
    return x


@operator()
def leaky_relu(x: Floats, alpha: float = 0.01) -> Floats:
    """A line of another slope below zero."""
    return np.where(x < 0, alpha * x, x)


@operator()
def thresholded_relu(x: Floats, alpha: float = 1.0) -> Floats:
    """What is above a threshold; the rest is 0."""
    return np.where(x > alpha, x, np.float32(0))


@operator()
def elu(x: Floats, alpha: float = 1.0) -> Floats:
    """``alpha * (exp(x) - 1)`` below zero."""
    # Rounded before it is multiplied, as in float32. `expm1` keeps the digits that `exp - 1` loses
    # near 0.
    return np.where(x < 0, alpha * _once(np.expm1(_double(x))), x)


@operator()
def selu(
    x: Floats,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> Floats:
    """``gamma`` times an Elu."""
    wide = _double(x)
    return _once(np.float64(gamma) * np.where(wide < 0, np.float64(alpha) * np.expm1(wide), wide))


@operator(since=12)
def celu(x: Floats, alpha: float = 1.0) -> Floats:
    """``alpha * (exp(x / alpha) - 1)`` below zero."""
    wide, width = _double(x), np.float64(alpha)
    return _once(np.where(wide < 0, width * np.expm1(wide / width), wide))


@operator(low=0.0, high=1.0)
def sigmoid(x: Floats) -> Floats:
    """``1 / (1 + exp(-x))``."""
    return _once(1 / (1 + np.exp(-_double(x))))


@operator(low=0.0, high=1.0, is_formula=True)
def hard_sigmoid(x: Floats, alpha: float = 0.2, beta: float = 0.5) -> Floats:
    """A line from 0 to 1, in float32."""
    return (alpha * x + beta).clip(0, 1)


@operator(since=14)
def hard_swish(x: Floats) -> Floats:
    """``x * clip(x + 3, 0, 6) / 6``, in float32."""
    return np.asarray(x * np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6))


@operator(since=24)
def swish(x: Floats, alpha: float = 1.0) -> Floats:
    """``x * sigmoid(alpha * x)``."""
    wide = _double(x)
    return _once(wide / (1 + np.exp(-np.float64(alpha) * wide)))


@operator(since=18)
def mish(x: Floats) -> Floats:
    """``x * tanh(softplus(x))``."""
    wide = _double(x)
    # `logaddexp` does not overflow where `log(1 + exp(x))` does.
    return _once(wide * np.tanh(np.logaddexp(0, wide)))


@operator(low=-1.0, high=1.0)
def tanh(x: Floats) -> Floats:
    """The hyperbolic tangent."""
    return _once(np.tanh(_double(x)))


@operator(low=0.0)
def softplus(x: Floats) -> Floats:
    """``log(1 + exp(x))``."""
    return _once(np.logaddexp(0, _double(x)))


@operator(low=-1.0, high=1.0)
def softsign(x: Floats) -> Floats:
    """``x / (1 + |x|)``."""
    wide = _double(x)
    return _once(wide / (1 + np.abs(wide)))


@operator(since=20)
def gelu(x: Floats, approximate: str = "none") -> Floats:
    """``x`` times the normal distribution's function, or its approximation by tanh."""
    if approximate == "tanh":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
        return np.float32(0.5) * x * (np.float32(1) + _once(np.tanh(_double(inner))))
    # `erfc`, because `1 + erf` cancels far below 0.
    return np.float32(0.5) * x * _each(math.erfc, x * np.float32(-math.sqrt(0.5)))


@operator(low=-1.0, high=1.0)
def erf(x: Floats) -> Floats:
    """The error function."""
    return _each(math.erf, x)


@operator()
def shrink(x: Floats, lambd: float = 0.5, bias: float = 0.0) -> Floats:
    """Zero between the bounds; outside moved toward zero."""
    inner = np.where(x > lambd, x - bias, np.float32(0))
    return np.where(x < -lambd, x + bias, inner)


# ---- arithmetic of one operand -------------------------------------------------------------------


@operator(name="Abs", low=0.0, is_activation=False)
def absolute(x: Floats) -> Floats:
    """The magnitude."""
    return np.abs(x)


@operator(name="Neg", is_activation=False)
def negative(x: Floats) -> Floats:
    """The same with the other sign."""
    return -x


@operator(low=0.0, is_activation=False)
def sqrt(x: Floats) -> Floats:
    """The square root."""
    return np.sqrt(x)


@operator(low=0.0, is_activation=False)
def exp(x: Floats) -> Floats:
    """The exponential."""
    return _once(np.exp(_double(x)))


@operator(is_activation=False)
def log(x: Floats) -> Floats:
    """The natural logarithm."""
    return _once(np.log(_double(x)))


@operator(is_activation=False)
def reciprocal(x: Floats) -> Floats:
    """``1 / x``."""
    return np.float32(1) / x


@operator(is_operator=False)
def rsqrt(x: Floats) -> Floats:
    """``1 / sqrt(x)``: Sqrt and Reciprocal."""
    return np.asarray(np.float32(1) / np.sqrt(x), np.float32)


@operator(low=0.0, is_operator=False)
def square(x: Floats) -> Floats:
    """``x * x``: Pow by 2."""
    return x * x


@operator(is_activation=False)
def floor(x: Floats) -> Floats:
    """The next integer below."""
    return np.floor(x)


@operator(is_activation=False)
def ceil(x: Floats) -> Floats:
    """The next integer above."""
    return np.ceil(x)


@operator(name="Round", is_activation=False)
def round_half_even(x: Floats) -> Floats:
    """The nearest integer; halves to even."""
    return np.rint(x)


@operator(low=-1.0, high=1.0, is_activation=False)
def sign(x: Floats) -> Floats:
    """-1, 0 or 1."""
    return np.sign(x)


@operator(low=-1.0, high=1.0, is_activation=False)
def sin(x: Floats) -> Floats:
    """The sine."""
    return _once(np.sin(_double(x)))


@operator(low=-1.0, high=1.0, is_activation=False)
def cos(x: Floats) -> Floats:
    """The cosine."""
    return _once(np.cos(_double(x)))


def _declare_numpy(name: str, function: str) -> None:
    """Declare a function of NumPy's that no hardware has codes for yet."""

    def body(x: Floats) -> Floats:
        return _once(getattr(np, function)(_double(x)))

    operator(name=name, is_activation=False)(body)


for _name, _function in (
    ("Tan", "tan"),
    ("Asin", "arcsin"),
    ("Acos", "arccos"),
    ("Atan", "arctan"),
    ("Sinh", "sinh"),
    ("Cosh", "cosh"),
    ("Asinh", "arcsinh"),
    ("Acosh", "arccosh"),
    ("Atanh", "arctanh"),
):
    _declare_numpy(_name, _function)
