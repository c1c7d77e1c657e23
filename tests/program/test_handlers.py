"""The table of functions by operation type."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from intact.errors import Unsupported
from intact.program.handlers import Handlers, NamedHandlers


class First:
    pass


class Second:
    pass


def test_a_registered_function_is_found_by_type_and_by_operation() -> None:
    handlers: Handlers[Callable[[], str]] = Handlers("A format")

    @handlers.register(First)
    def first() -> str:
        return "first"

    assert handlers[First] is first
    assert handlers.of(First()) is first
    assert list(handlers) == [First]


def test_an_operation_without_function_is_unsupported() -> None:
    handlers: Handlers[Callable[[], str]] = Handlers("A format")
    with pytest.raises(Unsupported, match="A format has no Second"):
        handlers.of(Second())


def test_a_second_function_for_an_operation_is_refused() -> None:
    handlers: Handlers[Callable[[], None]] = Handlers("A format")
    handlers.register(First)(lambda: None)
    with pytest.raises(ValueError, match="First twice"):
        handlers.register(First)(lambda: None)


def test_named_handlers_find_by_operator_name() -> None:
    handlers: NamedHandlers[Callable[[], str]] = NamedHandlers("A format")

    @handlers.register("ADD", "SUB")
    def add() -> str:
        return "add"

    assert handlers.of("SUB") is add
    with pytest.raises(Unsupported, match="A format has no MUL"):
        handlers.of("MUL")
    with pytest.raises(ValueError, match="ADD twice"):
        handlers.register("ADD")(add)
