"""The other side of `intact.formats.openvino.process`: runs what a folder holds, line by line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from intact.errors import IntactError
from intact.formats.openvino.process import DONE, FAILED, FEEDS, JOB, READY, RESULTS, store, stored
from intact.formats.openvino.run import OpenVinoRuntime


def main(folder: Path) -> None:
    """Compile the models of a folder's job, then run a batch for each line that comes in."""
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    try:
        models = [
            OpenVinoRuntime(Path(job["path"]), observe, threads=job["threads"])
            for observe in job["observed"]
        ]
        nodes = [
            [[sorted(n.layers), n.kind, n.precision, n.kernel] for n in model.executed]
            for model in models
        ]
        _say(f"{READY} {json.dumps(nodes)}")
        for _ in sys.stdin:
            (feeds,) = stored(folder / FEEDS)
            pairs = [model.run(feeds) for model in models]
            store(folder / RESULTS, [each for pair in pairs for each in pair])
            _say(f"{DONE} {len(models)}")
    except IntactError as error:
        _say(f"{FAILED} {error}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
