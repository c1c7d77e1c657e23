"""Runs OpenVINO in a process of its own, where it computes as on an older processor.

oneDNN, which computes OpenVINO's integer layers, reads ``ONEDNN_MAX_CPU_ISA`` once, when it is
loaded. Models and arrays are files of a temporary folder; lines of text say which is next. Run as a
script, this module is that process (`main`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.engines.cpu import instruction_sets
from intact.errors import ExportError, IntactError
from intact.formats.openvino.run import ExecutedNode, OpenVinoRuntime
from intact.targets import InstructionSet

_Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

LIMIT = "ONEDNN_MAX_CPU_ISA"
"""The variable that names the newest instructions that are used, for instance ``AVX2``."""

_KNOWN_LIMITS = {
    "AVX2": (InstructionSet.AVX2,),
    "AVX2_VNNI": (InstructionSet.AVX_VNNI, InstructionSet.AVX2),
    "AVX2_VNNI_2": (InstructionSet.AVX_VNNI, InstructionSet.AVX2),
    "AVX512_CORE": (InstructionSet.AVX512, InstructionSet.AVX2),
}
_WITHOUT_AMX = frozenset({"AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16"})
_BEFORE_AVX2 = frozenset({"SSE41", "AVX"})

_QUIET = {"ONEDNN_VERBOSE": "0"}
"""oneDNN's own report, in several threads, makes layers fail now and then."""

JOB, FEEDS, RESULTS = "job.json", "feeds.npz", "results.npz"
"""Files of the folder."""
_COMPLAINTS = "stderr.txt"
_WORKER = "intact.formats.openvino.process"
_LONGEST_REASON = 300
_PATIENCE = 10
"""Seconds that a process gets to end by itself."""
READY, DONE, FAILED = "ready", "done", "failed"
"""What the other process says, at the start of a line."""


def instructions_in_use(limit: str) -> InstructionSet | None:
    """Return the best instructions of this processor that oneDNN uses; None if not known.

    Args:
        limit: Value of ``ONEDNN_MAX_CPU_ISA``, or "".
    """
    limit = limit.upper()
    allowed: Collection[InstructionSet] = _KNOWN_LIMITS.get(limit, tuple(InstructionSet))
    # No target describes the kernels of processors before AVX2.
    if limit in _BEFORE_AVX2:
        return None
    if limit in _WITHOUT_AMX:
        allowed = set(InstructionSet) - {InstructionSet.AMX}
    return next((each for each in instruction_sets() if each in allowed), None)


class OpenVinoProcess:
    """Models compiled under a limit of instructions; a context manager, which ends the process.

    Args:
        path: ``.onnx`` or ``.xml``.
        observed: For each of several compiled models the tensors that it returns.
        instructions: Value of ``ONEDNN_MAX_CPU_ISA``.
        threads: Threads of the plugin; 0 takes all cores.

    Attributes:
        executed: What runs, for each compiled model.

    Raises:
        ExportError: OpenVINO refuses the model.
    """

    def __init__(
        self,
        path: Path,
        observed: Sequence[Sequence[str]],
        instructions: str,
        *,
        threads: int = 0,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._place = Path(self._folder.name)
        job = {"path": str(path), "observed": [list(each) for each in observed], "threads": threads}
        (self._place / JOB).write_text(json.dumps(job), encoding="utf-8")
        # Into a file: a pipe that nobody empties would stop the process when it is full.
        with (self._place / _COMPLAINTS).open("wb") as complaints:
            self._process = subprocess.Popen(
                # With -P no file of the working folder is imported in the place of a module.
                [sys.executable, "-P", "-X", "utf8", "-m", _WORKER, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**os.environ, **_QUIET, LIMIT: instructions},
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        try:
            reported = json.loads(self._answer(READY))
        # Whoever interrupts this must not leave a process behind either.
        except BaseException:
            self.close()
            raise
        self.executed = tuple(
            tuple(
                ExecutedNode(frozenset(layers), kind, precision, kernel)
                for layers, kind, precision, kernel in nodes
            )
            for nodes in reported
        )

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> list[tuple[_Arrays, _Arrays]]:
        """Run one batch in each compiled model; return the outputs and observed tensors of each.

        Raises:
            ExportError: OpenVINO fails on these inputs.
        """
        # Arrays go through files: what OpenVINO prints of its own would lie among their bytes.
        save_arrays(self._place / FEEDS, [feeds])
        self._say("run")
        count = int(self._answer(DONE))
        arrays = load_arrays(self._place / RESULTS)
        return [(arrays[2 * k], arrays[2 * k + 1]) for k in range(count)]

    def close(self) -> None:
        """End the process and remove the folder."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it may have ended with a line unread
                # The end of its input ends its loop.
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> OpenVinoProcess:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def _say(self, line: str) -> None:
        if self._process.stdin is None:
            raise ExportError("OpenVINO's process takes no input")
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def _answer(self, wanted: str) -> str:
        """Read up to a line that starts with the word, and return the rest of that line."""
        for line in self._process.stdout or ():
            word, _, rest = line.rstrip("\n").partition(" ")
            # Other lines are what OpenVINO prints by itself.
            if word == wanted:
                return rest
            if word == FAILED:
                raise ExportError(rest)
        raise self._ended()

    def _ended(self) -> ExportError:
        return ExportError(
            f"OpenVINO's process ended before it was done{self._why()}",
            remedy="verify fewer samples at once, or without the limit of instructions",
        )

    def _why(self) -> str:
        """Return how it ended, or the last line that it complained with."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=_PATIENCE)
            # Who is killed leaves no message.
            if code < 0:
                return f": killed by signal {-code}"
        text = (self._place / _COMPLAINTS).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f": {lines[-1][:_LONGEST_REASON]}" if lines else ""


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
        _tell(f"{READY} {json.dumps(nodes)}")
        for _ in sys.stdin:
            (feeds,) = load_arrays(folder / FEEDS)
            pairs = [model.run(feeds) for model in models]
            save_arrays(folder / RESULTS, [each for pair in pairs for each in pair])
            _tell(f"{DONE} {len(models)}")
    except IntactError as error:
        _tell(f"{FAILED} {error}")


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    # Else the line stays in a buffer, and both processes wait for each other.
    sys.stdout.flush()


def save_arrays(path: Path, dictionaries: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
    """Store dictionaries of arrays; names of tensors may be any text, names in the file not."""
    names = [list(each) for each in dictionaries]
    arrays = [array for each in dictionaries for array in each.values()]
    text = np.frombuffer(json.dumps(names).encode(), np.uint8)
    np.savez(path, text, *arrays)


def load_arrays(path: Path) -> list[_Arrays]:
    """Return the dictionaries of arrays that a file holds."""
    # A pickle runs what its author wrote.
    with np.load(path, allow_pickle=False) as archive:
        names = json.loads(archive["arr_0"].tobytes())
        arrays = iter([archive[f"arr_{k}"] for k in range(1, len(archive.files))])
        return [{name: next(arrays) for name in group} for group in names]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
