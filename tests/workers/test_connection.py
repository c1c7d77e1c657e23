"""Starting a cluster that is interrupted, with what Ray does replaced."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("ray")

# In a process of its own: other tests load libraries that have handlers of signals of their own.
_PROGRAM = """
import signal
from unittest import mock

import ray

from intact.workers.ray_ import Connection, close_all

signal.signal(signal.SIGINT, signal.default_int_handler)
handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
went_on = []

def interrupt(*_, **__):
    signal.raise_signal(signal.SIGINT)
    went_on.append(True)

connection = Connection("local")
with (
    mock.patch.object(ray, "is_initialized", return_value=False),
    mock.patch.object(ray, "init", interrupt),
    mock.patch.object(ray, "shutdown") as shutdown,
):
    try:
        connection.open()
    except KeyboardInterrupt:
        print("interrupted")
    assert went_on == [True]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    close_all()
    connection.close()
shutdown.assert_called_once_with()
"""


def test_an_interrupted_start_is_finished_and_ended() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr
