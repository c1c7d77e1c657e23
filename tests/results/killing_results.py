"""Kills a process before each file that saving a result moves; run as a program, by `test_result`.

    python -m tests.results.killing_results KIND OLD NEW FOLDER

OLD and NEW are results; KIND is ``one`` or ``several``, how they are saved in FOLDER.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from intact.plan import plan_to_json
from intact.results.folder import check_output, results_in
from intact.results.result import Result, save_several
from tests.results import killing


def main() -> None:
    """Sweep over the steps."""
    kind, *paths = sys.argv[1:]
    old, new = (Result.load(path) for path in paths[:2])
    texts = [plan_to_json(each.plan) for each in (old, new)]
    folder = Path(paths[2])
    killing.STEPS = killing.MOVES  # the others are swept with small files

    def save(result: Result) -> None:
        check_output(folder)
        if kind == "one":
            result.save(folder)
        else:
            save_several({"a": result, "b": result}, folder)

    step = 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        save(old)
        was_killed = killing.killed_at(step, lambda: save(new))
        found = [folder] if kind == "one" else results_in(folder)
        assert len(found) == (1 if kind == "one" else 2)
        plans = {plan_to_json(Result.load(each).plan) for each in found}
        assert plans in ({texts[0]}, {texts[1]}), f"step {step}"
        check_output(folder)
        assert [path.name for path in folder.parent.iterdir()] == [folder.name], f"step {step}"
        if not was_killed:
            sys.stdout.write(f"steps {step}\n")
            return
        step += 1


if __name__ == "__main__":
    main()
