"""Compiles a written C program, runs it, and compares it with the integer engine.

It shows its outputs only.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError, ExportError, MissingExtraError
from intact.formats.base.comparison import in_int32, numbers_of, stored_feeds
from intact.formats.base.format import Feeds
from intact.formats.base.report import Verification
from intact.formats.base.verification import Arrays, compare, integer_ends
from intact.formats.c.files import Port
from intact.formats.c.write import CProgram
from intact.plan import QuantizedGraph
from intact.program.deployed import deployed_program
from intact.program.passes.integer_io import integer_io

COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order."""

FLAGS = ("-std=c99", "-O2")
QUICK = ("-std=c99", "-O0")
"""For one sample: compiling takes longer than running it."""


class CRuntime:
    """A compiled program; a context manager, or closed when it is collected.

    It runs in a process of its own, so that a fault in it is an error here and no crash.

    Args:
        program: What was written.
        flags: Options of the compiler.
        compiler: A path or name; the first of `COMPILERS` on the PATH where it is "".

    Raises:
        MissingExtraError: There is no compiler.
        ExportError: The compiler rejects the program.
    """

    def __init__(
        self, program: CProgram, *, flags: Sequence[str] = FLAGS, compiler: str = ""
    ) -> None:
        self.program = program
        # Held as long as the runtime: the executable lies in it.
        self._folder = tempfile.TemporaryDirectory(prefix="intact-c-")
        folder = Path(self._folder.name)
        for name, text in program.files.items():
            (folder / name).write_text(text, "utf-8")
        (folder / "driver.c").write_text(_driver(program), "utf-8")
        self._executable = folder / "driver"
        self.warnings = _compile(
            [compiler or _compiler(), *flags, f"{program.name}.c", "driver.c", "-o", "driver"],
            folder,
        )

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.int8]]:
        """Run a batch, sample by sample.

        Args:
            feeds: By the model's input names: codes, int8, or whole numbers; the first axis is
                the batch.

        Returns:
            Codes by the model's output names.

        Raises:
            DataError: An input is missing, or has the wrong type or size.
            ExportError: The program failed.
        """
        rows = [_rows(port, feeds) for port in self.program.inputs]
        counts = {len(each) for each in rows} or {1}
        if len(counts) > 1:
            raise DataError(
                "the inputs hold different numbers of samples", remedy="give each as many"
            )
        count = counts.pop()
        # The driver reads the inputs of a sample one after the other.
        fed = np.concatenate(rows, axis=1) if rows else np.zeros((1, 1), np.int8)
        done = subprocess.run(
            [str(self._executable), str(count)],
            input=fed.tobytes(),
            capture_output=True,
            check=False,
        )
        width = sum(port.size for port in self.program.outputs)
        # A program that crashes may have written some samples already.
        if done.returncode or len(done.stdout) != count * width:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise ExportError(
                f"the C program failed with status {done.returncode}: {said}",
                remedy="report this: a written program does not fail",
            )
        results = np.frombuffer(done.stdout, np.int8).reshape(count, width)
        return self._split(results)

    def _split(self, results: npt.NDArray[np.int8]) -> dict[str, npt.NDArray[np.int8]]:
        outputs, start = {}, 0
        for port in self.program.outputs:
            part = results[:, start : start + port.size]
            first, *rest = port.shape or (1,)
            # Scalars have no axis of samples, unless several samples were run.
            is_scalar = not port.shape and len(part) == 1
            shape = () if is_scalar else (len(part) * first, *rest)
            outputs[port.name] = part.reshape(shape).copy()
            start += port.size
        return outputs

    def close(self) -> None:
        """Delete the compiled program."""
        self._folder.cleanup()

    def __enter__(self) -> CRuntime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_c(plan: QuantizedGraph, written: CProgram, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
    """Compile a C program for this machine and run it; the outputs by name, as numbers.

    Args:
        plan: What was written.
        written: The program.
        feeds: Inputs by name, with axes as the model has them.

    Raises:
        MissingExtraError: There is no C compiler.
        ExportError: It refuses the program, or the program fails.
    """
    lowered = deployed_program(plan)
    program = integer_io(lowered)
    given = stored_feeds(program, feeds, lowered.inputs)
    with CRuntime(written, flags=QUICK) as runtime:
        return numbers_of(runtime.run(given), program.outputs)


def _rows(port: Port, feeds: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int8]:
    """Return the bytes of an input, one sample a row."""
    if port.name not in feeds:
        raise DataError(f"input {port.name!r} is missing", remedy="give an array of that name")
    array = np.asarray(feeds[port.name])
    if port.tensor.encoding is None:
        array = in_int32(port.name, array)
    elif array.dtype != np.int8:
        raise DataError(
            f"input {port.name!r} is {array.dtype}, the program takes int8", remedy="give its codes"
        )
    batch = port.shape[0] if port.shape else 1
    is_whole = array.shape == tuple(port.shape)
    if not is_whole and (
        array.shape[1:] != tuple(port.shape[1:]) or array.ndim == 0 or len(array) % max(batch, 1)
    ):
        raise DataError(
            f"input {port.name!r} has shape {list(array.shape)}, the program takes "
            f"{list(port.shape)}",
            remedy="give arrays of that shape, with any number of samples along the first axis",
        )
    return np.ascontiguousarray(array).reshape(-1, port.size).view(np.int8)


def _compiler() -> str:
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise MissingExtraError(
        f"there is no C compiler ({', '.join(COMPILERS)}) on the PATH",
        remedy="install one, or compile the written files elsewhere",
    )


def _compile(command: Sequence[str], folder: Path) -> str:
    """Run the compiler; return what it said."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, check=False, text=True, errors="replace"
        )
    except OSError as error:
        raise MissingExtraError(
            f"{command[0]!r} cannot be run: {error}", remedy="name a C compiler"
        ) from error
    if done.returncode:
        raise ExportError(
            f"the C compiler rejects the program: {done.stderr.strip()}",
            remedy="use a C99 compiler; report this if it is one",
        )
    return done.stderr


def _driver(program: CProgram) -> str:
    """Return a main function that runs samples from standard input to standard output."""
    ports = (*program.inputs, *program.outputs)
    # Static, since activations of images overflow a stack.
    buffers = [f"static {port.type} p{at}[{port.size or 1}];" for at, port in enumerate(ports)]
    arguments = ", ".join(f"p{at}" for at in range(len(ports)))
    fed = len(program.inputs)
    calls = ["fread({}, stdin)"] * fed + ["fwrite({}, stdout)"] * (len(ports) - fed)
    done = [f"p{at}, sizeof(p{at}[0]), {port.size}" for at, port in enumerate(ports)]
    checks = [
        f"        if ({call.format(what)} != {port.size}) {{ return 2; }}"
        for call, what, port in zip(calls, done, ports, strict=True)
    ]
    lines = "\n".join
    return f"""\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "{program.name}.h"

{lines(buffers)}

int main(int count, char **words)
{{
    long samples = (count > 1) ? strtol(words[1], NULL, 10) : 0;
    for (; samples > 0; samples--) {{
{lines(checks[:fed])}
        {program.name}_run({arguments});
{lines(checks[fed:])}
    }}
    return 0;
}}
"""


def verify_c(plan: QuantizedGraph, written: CProgram, batches: Iterable[Feeds]) -> Verification:
    """Compare a C program, compiled for this machine, with the integers that its plan says.

    Args:
        plan: What was written.
        written: The program.
        batches: Inputs by name, with axes as the model has them: floats, or int8 codes.

    Raises:
        MissingExtraError: There is no C compiler.
        ExportError: It refuses the program, or the program fails.
        DataError: The program was written from another plan.
    """
    reference, given = integer_ends(plan, batches)
    outputs = reference.engine.program.outputs
    with CRuntime(written) as runtime:

        def run(feeds: Feeds) -> tuple[Arrays, Arrays]:
            return dict(runtime.run(feeds)), {}

        name = "C99 program, compiled for this machine"
        return compare(plan, name, run, reference, given, outputs)
