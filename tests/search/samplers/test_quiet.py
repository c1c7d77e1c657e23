"""What compiled code prints while a program is solved."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import os
from intact.search.samplers.integer_program import discard_stdout

print("before")
try:
    with discard_stdout():
        os.write(1, b"chatter\\n")
        raise KeyError
except KeyError:
    os.write(1, b"after\\n")
"""


def test_only_what_is_printed_inside_is_lost() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=os.environ
    )
    assert found.stdout.splitlines() == ["before", "after"]
    assert found.stderr == ""
