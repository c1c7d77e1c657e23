"""`intact quantize` walks through few files, and hardly ever back up to a room above."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from intact.demo import calibration_path, model_path
from tests.test_layering import PACKAGE, allowed_rooms

WALK = frozenset({"cli", "api", "recipe", "flow", "results"})
"""Rooms that say what happens next; others do it."""
MOST_FILES = 35
"""Files of these rooms whose functions run."""
MOST_CLIMBS = 6
"""Functions of a room below that call one of a room above, given to them: progress, a timer."""
HANDS_BACK = frozenset({"_memo"})
"""What calls a function only to keep its result."""

RUN = """
import json, sys
package, argv = sys.argv[1], sys.argv[2:]
called = set()

def note(frame, event, _):
    if event != "call" or not frame.f_code.co_filename.startswith(package):
        return
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(package):
        caller = caller.f_back
    if "<module>" not in (frame.f_code.co_name, caller and caller.f_code.co_name):
        before = caller and (caller.f_code.co_filename, caller.f_code.co_name)
        called.add((before, (frame.f_code.co_filename, frame.f_code.co_name)))

from intact.cli.entry import run
sys.setprofile(note)
code = run(argv)
sys.setprofile(None)
print("called", json.dumps(list(called)), file=sys.stderr)
sys.exit(code)
"""


def room_of(file: str) -> str:
    return Path(file).relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_quantize_walks_through_few_files(tmp_path: Path) -> None:
    arguments = ("quantize", model_path(), "--data", calibration_path(), "--output", tmp_path / "q")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(PACKAGE), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    listed = next(line for line in done.stderr.splitlines() if line.startswith("called "))
    calls = json.loads(listed.removeprefix("called "))

    files = Counter(room_of(file) for file in {into[0] for _, into in calls})
    assert sum(files[room] for room in WALK) <= MOST_FILES

    climbs = {
        (tuple(caller), tuple(into))
        for caller, into in calls
        if caller is not None
        and room_of(caller[0]) not in HANDS_BACK
        and room_of(into[0]) not in allowed_rooms(room_of(caller[0]))
    }
    assert len(climbs) <= MOST_CLIMBS, sorted(climbs)
