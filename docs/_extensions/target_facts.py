"""What a target's TOML file says, as Markdown for its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from intact._extras import install_hint
from intact.formats.registry import FORMATS
from intact.numerics.levels import Rounding
from intact.targets import (
    Arithmetic,
    ArithmeticOverride,
    FixedPoint,
    FloatEnds,
    FloatInTurn,
    Functions,
    Multiplier,
    Product,
    ScalePrecision,
    Shift,
    Target,
    ZeroPointOrder,
    load_target,
    target_names,
)
from intact.targets.arithmetic import Accumulator, Requantization
from intact.targets.rules import Condition, OpRule, ScaleRule
from intact.targets.scheme import Granularity, SchemeOverride, TensorScheme

_ROUNDINGS: Mapping[Rounding, str] = {
    Rounding.HALF_EVEN: "ties to even",
    Rounding.HALF_UP: "ties up",
    Rounding.HALF_DOWN: "ties down",
    Rounding.HALF_TOWARD_ZERO: "ties toward zero",
    Rounding.HALF_AWAY_FROM_ZERO: "ties away from zero",
    Rounding.UP: "everything up",
}
_PRODUCTS: Mapping[Product, str] = {
    Product.DOUBLE: "int32 multiplier and shift, rounded twice",
    Product.SINGLE: "int32 multiplier and shift, 64-bit product rounded once",
    Product.WIDE: "15-bit multiplier of a 64-bit sum, rounded once",
}
_ZERO_POINTS: Mapping[ZeroPointOrder, str] = {
    ZeroPointOrder.AFTER_ROUNDING: "added after rounding",
    ZeroPointOrder.BEFORE_ROUNDING: "added before rounding",
}
_OVERFLOWS: Mapping[str, str] = {
    "exact": "never overflows",
    "wrap": "wraps",
    "pair_saturate": "pairs of products saturate at 16 bits",
}
_PRECISIONS: Mapping[ScalePrecision, str] = {
    ScalePrecision.FLOAT32: "float32",
    ScalePrecision.FLOAT64: "float64",
    ScalePrecision.DECIMAL6: "text with six decimals",
}
_MULTIPLIERS: Mapping[Multiplier, str] = {
    Multiplier.FLOAT32: "float32",
    Multiplier.FLOAT64: "float64",
    Multiplier.FLOAT32_PRODUCT: "float64, the product of input scales in float32",
}
_FUNCTIONS: Mapping[Functions, str] = {
    Functions.FLOAT32: "float32, or a table of it",
    Functions.FIXED_POINT: "fixed point, or a table",
    Functions.INTERPOLATED: "a table with lines between",
    Functions.TABLE: "a table in the file",
    Functions.TRUNCATED: "a table, truncated",
}
_TIES: Mapping[ScaleRule, str] = {
    ScaleRule.FREE: "",
    ScaleRule.OUTPUT_FOLLOWS_INPUT: "the output has the input's scale",
    ScaleRule.INPUT_FOLLOWS_OUTPUT: "the input takes the output's scale",
    ScaleRule.EITHER_FOLLOWS: "input and output have one scale, the output's if possible",
    ScaleRule.UNIFY_INPUTS: "all inputs have one scale",
    ScaleRule.UNIFY_ALL: "inputs and output have one scale",
}
_WHEN: Mapping[str, Callable[[Any], str]] = {
    "attributes": lambda value: ", ".join(f"{name} {_plain(each)}" for name, each in value.items()),
    "kernel_shape": lambda value: f"kernel {'x'.join(map(str, value))}",
    "groups": lambda value: f"groups: {_plain(value)}",
    "ranks": lambda value: f"input of {_plain(value)} axes",
    "weight_slot": lambda value: f"constant {'left' if value == 0 else 'right'} factor",
    "weight_ranks": lambda value: f"constant factor of {_plain(value)} axes",
    "constant_weight": lambda value: "with a constant weight" if value else "of two activations",
    "constant_input": lambda value: "with a constant input" if value else "without constant inputs",
    "own_function": lambda value: f"one input is {_plain(value)} of another",
    "max_consumers": lambda value: f"at most {value} readers",
    "power_of_two_window": lambda _: "windows of 2, 4, 8 ... elements",
    "right_zero_point": lambda value: f"zero point {value} on the right",
}
_VERIFIED_WITHOUT_RUNTIME: Mapping[str, str] = {
    "tensorrt": "no runtime: the files are checked against TensorRT's documented rules",
    "tengine": "no runtime: the files are read back and run in the integer engine",
    "tengine_effective": "a table of scales, nothing to run",
    "encodings": "a table of scales, nothing to run",
}
_RUNTIMES: Mapping[str, str] = {
    "onnx_qdq": "ONNX Runtime",
    "onnx_integer": "ONNX Runtime",
    "onnx_levels": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tflite": "LiteRT or TFLite Micro",
    "c": "the machine's C compiler",
    "ncnn": "ncnn",
    "tvm": "TVM",
}


def facts(name: str) -> str:
    """Return the generated part of the page of a target."""
    target = load_target(name)
    base = (
        f"[`{target.extends}`]({target.extends}.md), and what differs from it"
        if target.extends
        else ""
    )
    rows = [
        ("Description", target.description),
        ("Extends", base),
        *((f"Format `{each}`", _format(each)) for each in target.formats),
        ("Activations", _scheme(target.activation)),
        (
            "Unsigned activations",
            f"behind {', '.join(target.unsigned.after)}" if target.unsigned.after else "",
        ),
        ("Weights", _scheme(target.weight)),
        ("Biases", _bias(target)),
        *_arithmetic(target.arithmetic),
        ("Threshold method", _methods(target)),
        ("Expanded into simpler operators", ", ".join(target.expand)),
    ]
    parts = [
        "## What the target's file says",
        f"`intact targets show {name}` prints the file. This table is generated from it.",
        _table(("", ""), (row for row in rows if row[1])),
        "### Operators",
        "An operator that is not listed stays float. Of several rows the last that fits counts.",
        _table(("operators", "if", "computed"), map(_rule, target.rules)),
    ]
    if target.fusions:
        chains = (
            " then ".join(" or ".join(step) for step in each.pattern) for each in target.fusions
        )
        parts += ["### Fused", "\n".join(f"- {chain}" for chain in chains)]
    if target.arithmetic.overrides:
        parts += [
            "### Arithmetic of single operators",
            _table(("operators", "if", "computed"), map(_override, target.arithmetic.overrides)),
        ]
    if target.cost:
        rows = [(f"`{kind}`", f"{cost:g}") for kind, cost in target.cost.items()]
        parts += ["### Relative cost", _table(("operator and type", "cost"), rows)]
    parts += ["### Sources", "\n".join(f"- {_escaped(source)}" for source in target.sources)]
    return "\n\n".join(parts) + "\n"


def every_arithmetic() -> str:
    """Return a table of how each target computes."""

    def row(name: str) -> tuple[str, ...]:
        arithmetic = load_target(name).arithmetic
        return (
            f"[`{name}`](targets/{name}.md)",
            _requantization(arithmetic.requantize),
            _ROUNDINGS[arithmetic.rounding],
            _ZERO_POINTS[arithmetic.zero_point].removeprefix("added "),
            _accumulator(arithmetic.accumulator),
            _stored(arithmetic),
        )

    head = ("target", "requantization", "rounding", "zero point", "accumulator", "stored scales")
    text = "The default of each target; its page lists the operators that differ."
    return f"## Every target\n\n{text}\n\n{_table(head, map(row, target_names()))}\n"


def every_target() -> str:
    """Return a table of all targets with links to their pages."""
    rows = []
    for name in target_names():
        target = load_target(name)
        formats = ", ".join(f"`{each}`" for each in target.formats)
        rows.append((f"[`{name}`](targets/{name}.md)", target.description, formats))
    return f"## All targets\n\n{_table(('target', 'hardware', 'formats'), rows)}\n"


def _format(name: str) -> str:
    described = FORMATS[name].writer
    files = ", ".join(f"`{file}`" for file in described.files if not file.endswith(".data"))
    runtime = _RUNTIMES.get(name)
    runs = f"runs and verifies in {runtime}" if runtime else _VERIFIED_WITHOUT_RUNTIME[name]
    needs = f"; needs `{install_hint(described.extra)}`" if described.extra else ""
    return f"{files}; {runs}{needs}"


def _scheme(scheme: TensorScheme) -> str:
    if scheme.is_float:
        return "float32"
    parts = [
        f"{scheme.dtype}, codes {scheme.quant_min} to {scheme.quant_max}",
        "zero point 0" if scheme.symmetric else "a zero point that calibration chooses",
        _granularity(scheme.granularity),
        _ROUNDINGS[scheme.rounding],
    ]
    if scheme.power_of_two:
        parts.append("scales are powers of two")
    if scheme.is_logarithmic:
        parts.append(f"logarithmic, {scheme.steps_per_octave} levels an octave")
    if scheme.truncated_zero_point:
        parts.append("zero points are truncated")
    return ", ".join(parts)


def _granularity(granularity: Granularity) -> str:
    return "one scale a tensor" if granularity is Granularity.PER_TENSOR else "one scale a channel"


def _bias(target: Target) -> str:
    if target.bias.dtype.is_float:
        return "float32"
    low, high = target.bias.range()
    return f"{target.bias.dtype}, {low} to {high}, scale of the input times scale of the weight"


def _arithmetic(arithmetic: Arithmetic) -> Iterator[tuple[str, str]]:
    yield "Accumulator", _accumulator(arithmetic.accumulator)
    yield "[Requantization](../arithmetic.md)", _requantization(arithmetic.requantize)
    yield "Rounding", _ROUNDINGS[arithmetic.rounding]
    yield "Zero point", _ZERO_POINTS[arithmetic.zero_point]
    yield "Scales in the file", _stored(arithmetic)
    yield "Multipliers are computed in", _MULTIPLIERS[arithmetic.multiplier]
    yield "Curved functions", _FUNCTIONS[arithmetic.functions]


def _accumulator(accumulator: Accumulator) -> str:
    return f"{accumulator.bits} bits, {_OVERFLOWS[accumulator.kind]}"


def _requantization(way: Requantization) -> str:
    match way:
        case Shift():
            return "shift, rounded once"
        case FixedPoint():
            return _PRODUCTS[way.product]
        case FloatEnds():
            return "float32 factor, rounded once"
        case FloatInTurn():
            return f"{way.precision} scales one after another, rounded each time"
    return f"{way.precision} factor, rounded once"


def _stored(arithmetic: Arithmetic) -> str:
    if isinstance(arithmetic.requantize, FloatEnds):
        return "float32 ends of a range (FakeQuantize)"
    return _PRECISIONS[arithmetic.scale_precision]


def _methods(target: Target) -> str:
    calibration = target.calibration
    text = f"`{calibration.method}`"
    if calibration.alternatives:
        others = " or ".join(f"`{each}`" for each in calibration.alternatives)
        text += f", or {others} where that loses less"
    return f"{text}; weights `{calibration.weight_method}`; preset `{calibration.preset}`"


def _rule(rule: OpRule) -> tuple[str, str, str]:
    if rule.quantize:
        parts = [
            f"integers{' behind a quantized source' if rule.float else ''}",
            _TIES[rule.scales],
        ]
        if rule.fixed_output is not None:
            fixed = rule.fixed_output
            parts.append(f"output scale {fixed.scale:.8g}, zero point {fixed.offset}")
        parts += [_changes("activations", rule.activation), _changes("weights", rule.weight)]
    else:
        stored = ", weights stored as integers" if rule.weights_only else ""
        parts = [f"float{stored}: {rule.reason}"]
    return ", ".join(rule.ops), _condition(rule.when), "; ".join(part for part in parts if part)


def _changes(subject: str, override: SchemeOverride | None) -> str:
    if override is None:
        return ""
    changed = ", ".join(f"{name} {_plain(value)}" for name, value in _given(override))
    return f"{subject}: {changed}" if changed else ""


def _override(override: ArithmeticOverride) -> tuple[str, str, str]:
    conditions = [_condition(override.when), ", ".join(override.instructions)]
    fields = (f"`{name} = {_told(value)}`" for name, value in override.changes.items())
    when = "; ".join(each for each in conditions if each)
    return ", ".join(override.ops), when, ", ".join(fields)


def _told(value: Any) -> str:
    if not isinstance(value, msgspec.Struct):
        return str(value).lower()
    defaults = {each.name: each.default for each in msgspec.structs.fields(value)}
    given = {name: each for name, each in _given(value) if each != defaults[name]}
    options = ", ".join(f"{name} = {_told(each)}" for name, each in given.items())
    return f"{value.__struct_config__.tag}" + (f" ({options})" if options else "")


def _condition(when: Condition | None) -> str:
    if when is None:
        return ""
    return "; ".join(_WHEN[name](value) for name, value in _given(when))


def _given(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is not None and value not in ({}, ()):
            yield name, value


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        lists = ("x".join(map(str, each)) if isinstance(each, tuple) else each for each in value)
        return " or ".join(map(_plain, lists))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    lines += [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("**", "\\*\\*")
