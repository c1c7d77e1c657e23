"""What this machine's processor can do: integer results depend on it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION_SETS = (
    ("amx_int8", "AMX"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx_vnni", "AVX-VNNI"),
    ("avx512bw", "AVX-512"),
    ("avx2", "AVX2"),
    ("i8mm", "Arm I8MM"),
    ("asimddp", "Arm dot product"),
    ("asimd", "Arm Neon"),
)
"""Linux flag and common name, best for int8 first."""


@dataclass(frozen=True)
class Cpu:
    """A processor.

    Attributes:
        name: Model name.
        instruction_set: The best int8 instruction set, by its common name.
        saturates_pairs: 8-bit weights can saturate sums of two products at 16 bits
            (``vpmaddubsw`` of processors before VNNI); None where that is not known.
    """

    name: str
    instruction_set: str
    saturates_pairs: bool | None


def detect_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Return the processor of this machine; "unknown" where the system does not tell."""
    fields: dict[str, str] = {}
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip().lower(), value.strip())
    except OSError:
        return Cpu(platform.processor() or platform.machine(), "unknown", None)
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    name = fields.get("model name") or platform.machine()
    for flag, common in _INSTRUCTION_SETS:
        if flag in flags:
            return Cpu(name, common, common in {"AVX-512", "AVX2"})
    return Cpu(name, "unknown", None)
