"""The table of functions by operation type."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from intact.errors import Unsupported
from intact.program.handlers import Handlers, NamedHandlers


class First:
    pass


class Second:
    pass


def test_a_registered_function_is_found_by_type_and_by_operation() -> None:
    handlers: Handlers[Callable[[], str]] = Handlers("a format has no {}")

    @handlers.register(First)
    def first() -> str:
        return "first"

    assert handlers[First] is first
    assert handlers.of(First()) is first
    assert list(handlers) == [First]


def test_an_operation_without_function_is_unsupported() -> None:
    handlers: Handlers[Callable[[], str]] = Handlers("a format has no {}")
    with pytest.raises(Unsupported, match="a format has no Second"):
        handlers.of(Second())


def test_a_second_function_for_an_operation_is_refused() -> None:
    handlers: Handlers[Callable[[], None]] = Handlers("a format has no {}")
    handlers.register(First)(lambda: None)
    with pytest.raises(ValueError, match="First has a function already"):
        handlers.register(First)(lambda: None)


def test_named_handlers_find_by_operator_name() -> None:
    handlers: NamedHandlers[Callable[[], str]] = NamedHandlers("a format has no {}")

    @handlers.register("ADD", "SUB")
    def add() -> str:
        return "add"

    assert handlers.of("SUB") is add
    with pytest.raises(Unsupported, match="a format has no MUL"):
        handlers.of("MUL")
    with pytest.raises(ValueError, match="ADD has a function already"):
        handlers.register("ADD")(add)


@pytest.mark.parametrize(
    "module",
    [
        "c.layer",
        "c.moves",
        "ncnn.builder",
        "onnx_integer.write",
        "tengine.tmfile.file_builder",
        "tflite.writer.builder",
        "tvm.write",
    ],
)
def test_a_format_says_that_intact_writes_none(module: str) -> None:
    """The runtime may well have the operator."""
    held = vars(import_module(f"intact.formats.{module}")).values()
    tables = [each for each in held if isinstance(each, Handlers | NamedHandlers)]
    assert tables
    for table in tables:
        unknown: Any = "Nothing" if isinstance(table, NamedHandlers) else First()
        with pytest.raises(Unsupported, match=r"^intact writes no \w+ (for|as) "):
            table.of(unknown)
