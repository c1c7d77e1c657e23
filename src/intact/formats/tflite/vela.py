"""Lets Vela compile a ``.tflite`` for an Ethos-U, and reads from its report what it maps."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from intact._text import first_names
from intact.errors import ExportError

_LINE = re.compile(r"^\s*(NPU|CPU): (\S+) = (.*?)(?: \(outputs .*\))?$", re.MULTILINE)
_SECONDS = 600


class Mapped(msgspec.Struct, frozen=True):
    """What Vela makes of a file.

    Attributes:
        version: Of Vela.
        accelerator: What it compiled for.
        operators: How many operators the accelerator computes; what Vela splits counts as it does.
        left: Those that stay with the processor: Vela's name of each, and its output.
    """

    version: str
    accelerator: str
    operators: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in one line."""
        said = f"Vela {self.version} maps {self.operators} operator(s) to {self.accelerator}"
        if not self.left:
            return f"{said}, and leaves none to the processor"
        return f"{said}, and leaves {len(self.left)} to the processor: {first_names(self.left)}"


def vela() -> str | None:
    """Return the path of Vela; None where it is not installed."""
    return shutil.which("vela")


def compiled(content: bytes, accelerator: str) -> Mapped | None:
    """Compile a file.

    Args:
        content: The file.
        accelerator: As Vela calls it.

    Returns:
        None where Vela is not installed.

    Raises:
        ExportError: Vela refuses the file.
    """
    program = vela()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.tflite"
        path.write_bytes(content)
        options = ["--accelerator-config", accelerator, "--show-cpu-operations"]
        done = _run([program, str(path), *options, "--output-dir", name])
        version = _run([program, "--version"]).stdout.strip()
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()
        raise ExportError(f"Vela refuses the file for {accelerator}: {lines[-1][:200]}")
    return read_report(done.stdout, version, accelerator)


def read_report(text: str, version: str, accelerator: str) -> Mapped:
    """Read what Vela prints of each operator.

    >>> str(read_report("   NPU: Conv2D = a (outputs [1, 4])\\n   CPU: TopK = b", "5", "u55"))
    'Vela 5 maps 1 operator(s) to u55, and leaves 1 to the processor: b (TopK)'
    """
    found = _LINE.findall(text)
    left = tuple(f"{name} ({kind})" for place, kind, name in found if place == "CPU")
    return Mapped(version, accelerator, len(found) - len(left), left)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, errors="replace", timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"Vela does not run: {error}") from error
