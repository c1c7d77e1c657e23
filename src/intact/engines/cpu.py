"""What this machine's processor can do: integer results depend on it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from intact.targets import InstructionSet, Target

_FLAGS = {
    "amx_int8": InstructionSet.AMX,
    "avx512_vnni": InstructionSet.AVX512_VNNI,
    "avx_vnni": InstructionSet.AVX_VNNI,
    "avx512bw": InstructionSet.AVX512,
    "avx2": InstructionSet.AVX2,
    "i8mm": InstructionSet.I8MM,
    "asimddp": InstructionSet.DOT_PRODUCT,
    "asimd": InstructionSet.NEON,
}
"""By the flags of Linux, best for int8 first."""

SATURATING = (InstructionSet.AVX512, InstructionSet.AVX2)
"""Sets without 8-bit dot products, whose kernels saturate sums of two products at 16 bits."""

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Cpu:
    """A processor.

    Attributes:
        name: Model name.
        instruction_set: The best int8 instruction set, by its common name, or "unknown".
        saturates_pairs: 8-bit weights can saturate sums of two products at 16 bits
            (``vpmaddubsw`` of processors before VNNI); None where that is not known.
    """

    name: str
    instruction_set: str
    saturates_pairs: bool | None


def detect_cpu(cpuinfo: Path = _CPUINFO) -> Cpu:
    """The processor of this machine; "unknown" where the system does not say."""
    fields = _fields(cpuinfo)
    name = fields.get("model name", "") if fields else platform.processor()
    known = instruction_sets(cpuinfo)
    if not known:
        return Cpu(name or platform.machine(), "unknown", None)
    return Cpu(name or platform.machine(), known[0], known[0] in SATURATING)


def instruction_sets(cpuinfo: Path = _CPUINFO) -> tuple[InstructionSet, ...]:
    """The int8 instruction sets of this machine's processor, best first; none if not known."""
    fields = _fields(cpuinfo)
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return tuple(known for flag, known in _FLAGS.items() if flag in flags)


def on_this_processor(target: Target) -> Target:
    """Return a target as the kernels for this machine's processor compute it."""
    return target.on(next(iter(instruction_sets()), None))


def _fields(cpuinfo: Path) -> dict[str, str]:
    """The fields of the first processor that the file lists, by their names in lower case."""
    fields: dict[str, str] = {}
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    return fields
