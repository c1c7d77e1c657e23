"""Fixes the shapes of a model's inputs, where it leaves them open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote

import onnx_ir as ir

from intact.errors import UsageError, nearest
from intact.graph.aliases import aliases_of

Sizes = Sequence[int | None]


def set_input_shapes(model: ir.Model, shapes: Mapping[str, Sizes]) -> None:
    """Set the sizes of inputs.

    A size that the model calls by a name is set wherever it has that name, so that what the model
    says of other tensors does not contradict it.

    Args:
        model: Changed in place.
        shapes: By input name, which is empty for the only input; None for what stays open.

    Raises:
        UsageError: The model has no such input, or fixes another size or number of axes.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    for value in list(inputs.values()):  # older files list constants too
        if str(value.name) in model.graph.initializers:
            del inputs[str(value.name)]
    aliases = aliases_of(model)
    named: dict[str, set[int]] = {}
    for name, sizes in shapes.items():
        value = inputs[_own_name(name, sizes, inputs, aliases)]
        _refuse_other(value, sizes)
        old = list(value.shape) if value.shape is not None else [None] * len(sizes)
        for dim, size in zip(old, sizes, strict=True):
            if size is not None and _has_name(dim):
                named.setdefault(str(dim), set()).add(size)
        merged = zip(old, sizes, strict=True)
        value.shape = ir.Shape([dim if size is None else size for dim, size in merged])
    # A name that got two sizes does not say which of them other tensors have.
    _substitute(model, {name: sizes.pop() for name, sizes in named.items() if len(sizes) == 1})


def _own_name(
    name: str, sizes: Sizes, inputs: Mapping[str, ir.Value], aliases: Mapping[str, str]
) -> str:
    shown = shown_option(name, sizes)
    if not name and len(inputs) != 1:
        raise UsageError(
            f"{shown}: the model has {len(inputs)} inputs ({', '.join(inputs)})",
            remedy=f"name one: {shown_option(next(iter(inputs), 'NAME'), sizes)}",
        )
    own = aliases.get(name, name) if name else next(iter(inputs))
    if own not in inputs:
        raise UsageError(f"{shown}: the model has no such input", remedy=nearest(name, inputs))
    return own


def _refuse_other(value: ir.Value, sizes: Sizes) -> None:
    if value.shape is None:
        return
    dims = list(value.shape)
    fixed = [dim if isinstance(dim, int) and dim >= 0 else None for dim in dims]
    fits = len(fixed) == len(sizes) and all(
        None in (have, size) or have == size for have, size in zip(fixed, sizes, strict=True)
    )
    if not fits:
        possible = ",".join("N" if dim is None else str(dim) for dim in fixed)
        raise UsageError(
            f"{shown_option(str(value.name), sizes)} contradicts the model, whose input is "
            f"[{', '.join('?' if dim is None else str(dim) for dim in fixed)}]",
            remedy=f"give {value.name}={possible}, with a number for each N"
            if "N" in possible
            else "leave it out",
        )


def _has_name(dim: object) -> bool:
    """Whether a size is called by a name that tells it from others; ``?`` does not."""
    return isinstance(dim, ir.SymbolicDim) and any(each.isalnum() for each in dim.value or "")


def _substitute(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Set sizes by name in all shapes of the main graph."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        if value.shape is not None and any(_has_name(dim) for dim in value.shape):
            value.shape = ir.Shape(
                [sizes.get(str(dim), dim) if _has_name(dim) else dim for dim in value.shape]
            )


def shown_option(name: str, sizes: Sizes) -> str:
    """Write the option as it is given."""
    text = ",".join("?" if size is None else str(size) for size in sizes)
    return f"--input-shape {quote(f'{name}={text}' if name else text)}"
