"""Modules of torch in the place of models: exported before anything else is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from intact._extras import require
from intact.data.images.steps import ImageSteps
from intact.data.preprocess import Preprocess
from intact.errors import DataError
from intact.recipe.kinds import is_instance
from intact.results.recipes import preprocess_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from intact.recipe.declare import Options


def is_module(model: object) -> bool:
    """Tell whether a model is a ``torch.nn.Module``; torch is not imported for that."""
    return is_instance(model, "torch.nn.Module")


def require_torch() -> None:
    """Refuse what needs torch where there is none.

    Raises:
        MissingExtraError: It is not installed.
    """
    require("training", ["torch"], "train")


O = TypeVar("O", bound="Options")  # noqa: E741


def with_exported(options: O) -> O:
    """Return options with the ONNX model of a module in the place of it; others as they are.

    The example that the export needs is given, or else the first batch of the data, which stays in
    the data.

    Raises:
        ModelError: torch cannot export the module.
        DataError: There is no example.
    """
    given: Any = options
    if not is_module(given.model):
        return options
    image = (preprocess_of(given) or Preprocess()).image
    model, data = exported(
        given.model, given.data, given.example, transform=given.transform, image=image
    )
    return options.but(model=model, data=data, example=None)


def exported(
    module: Any,
    data: object,
    example: object = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    image: ImageSteps | None = None,
) -> tuple[ir.Model, object]:
    """Export a module; return its ONNX model, and the data with its first batch still in it.

    Args:
        module: A ``torch.nn.Module``.
        data: Samples; None where there are none.
        example: A batch of its inputs; None takes the first of the data.
        transform: Applied to samples of the data first.
        image: The steps of images.

    Raises:
        ModelError: torch cannot export it.
        DataError: There is no example.
    """
    require_torch()
    from intact.improve.learn.example import Preparation, as_example, example_of
    from intact.improve.learn.export import argument_names, export_module, optional_names

    if example is not None:
        inputs = as_example(argument_names(module), example, optional_names(module))
    elif data is None:
        raise DataError(
            "a torch.nn.Module is exported with a batch of its inputs, and there is none",
            remedy="give example=, a tensor, a tuple or a dict, or data",
        )
    else:
        inputs, data = example_of(module, data, Preparation(transform, image or ImageSteps()))
    return export_module(module, inputs), data
