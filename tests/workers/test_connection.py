"""Ctrl-C while Ray starts waits until it has: its processes would be left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from unittest import mock

import pytest

from intact.workers.ray_ import Connection, close_all

ray = pytest.importorskip("ray")


def interrupt(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGINT)
    interrupt.went_on = True  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _usual_handler() -> Iterator[None]:
    """Let Ctrl-C raise, whatever another test of this process has left: else it would end it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_start_is_finished_and_ended() -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    connection = Connection("local")
    with (
        mock.patch.object(ray, "is_initialized", return_value=False),
        mock.patch.object(ray, "init", interrupt),
        mock.patch.object(ray, "shutdown") as shutdown,
    ):
        with pytest.raises(KeyboardInterrupt):
            connection.open()
        assert interrupt.went_on  # type: ignore[attr-defined]
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
        close_all()
        connection.close()
    shutdown.assert_called_once_with()
