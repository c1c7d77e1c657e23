"""Detects what this machine's processor can do, since integer results depend on it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import platform
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class _Facts(NamedTuple):
    """What a system tells of its processor: a name, and flags as Linux calls them."""

    name: str
    flags: frozenset[str]


def detect_cpu(cpuinfo: Path = _CPUINFO) -> Cpu:
    """Return the processor of this machine; "unknown" where the system does not say."""
    name, flags = _facts(cpuinfo)
    known = _sets_of(flags)
    name = name or platform.processor() or platform.machine()
    if not known:
        return Cpu(name, "unknown", None)
    return Cpu(name, known[0], known[0] in SATURATING)


def instruction_sets(cpuinfo: Path = _CPUINFO) -> tuple[InstructionSet, ...]:
    """Return the int8 instruction sets of this machine, best first; none if not known."""
    return _sets_of(_facts(cpuinfo).flags)


def on_this_processor(target: Target) -> Target:
    """Return a target as the kernels for this machine's processor compute it."""
    return target.on(next(iter(instruction_sets()), None))


def _sets_of(flags: Collection[str]) -> tuple[InstructionSet, ...]:
    return tuple(known for flag, known in _FLAGS.items() if flag in flags)


def _facts(cpuinfo: Path) -> _Facts:
    """Ask Linux's file, or else the processor itself, and what the system adds to that."""
    fields = _fields(cpuinfo)
    if fields:
        # x86 kernels call the line flags, Arm's call it Features.
        flags = (fields.get("flags") or fields.get("features") or "").split()
        return _Facts(fields.get("model name", ""), frozenset(flags))
    return _ask_system(_SYSTEMS.get(sys.platform, lambda: _Facts("", frozenset())))


@functools.cache
def _ask_system(system: Callable[[], _Facts]) -> _Facts:
    name, flags = system()
    # Both: macOS tells what LLVM does not know of Apple's cores, and LLVM reads x86 on systems
    # without such a list.
    return _Facts(name, flags | _llvm_flags())


_LLVM = {
    "amx-int8": "amx_int8",
    "avx512vnni": "avx512_vnni",
    "avxvnni": "avx_vnni",
    "avx512bw": "avx512bw",
    "avx2": "avx2",
    "i8mm": "i8mm",
    "dotprod": "asimddp",
    "neon": "asimd",
}
"""Flags of Linux by LLVM's names."""


def _llvm_flags() -> frozenset[str]:
    """Return the flags that LLVM reads from the processor (cpuid), on every system."""
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # it knows none of this processor
        return frozenset()
    return frozenset(flag for name, flag in _LLVM.items() if features.get(name))


_APPLE = {
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.neon": "asimd",
    "hw.optional.avx512vnni": "avx512_vnni",
    "hw.optional.avx512bw": "avx512bw",
    "hw.optional.avx2_0": "avx2",
}
"""Flags of Linux by what macOS calls them (``sysctl hw.optional``)."""


def _apple_facts() -> _Facts:
    flags = (flag for name, flag in _APPLE.items() if any(_sysctl(name)))
    name = _sysctl("machdep.cpu.brand_string").rstrip(b"\0").decode(errors="replace")
    return _Facts(name, frozenset(flags))


def _sysctl(name: str) -> bytes:
    """Return what macOS tells by a name; nothing where it knows no such name."""
    length = ctypes.c_size_t(256)
    held = ctypes.create_string_buffer(length.value)
    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return b""
    failed = ask(name.encode(), held, ctypes.byref(length), None, ctypes.c_size_t(0))
    return b"" if failed else held.raw[: length.value]


_REGISTRY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def _windows_facts() -> _Facts:
    registry: Any = importlib.import_module("winreg")
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, _REGISTRY) as key:
            name, _ = registry.QueryValueEx(key, "ProcessorNameString")
    except OSError:
        name = ""
    return _Facts(str(name).strip(), frozenset())


_SYSTEMS: Mapping[str, Callable[[], _Facts]] = {"darwin": _apple_facts, "win32": _windows_facts}


def _fields(cpuinfo: Path) -> dict[str, str]:
    """Return the fields of the first processor in the file, by names in lower case."""
    fields: dict[str, str] = {}
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        key, _, value = line.partition(":")
        # The first processor: all cores of a machine that runs one system image have the same
        # instructions, as far as a process may count on them.
        fields.setdefault(key.strip().lower(), value.strip())
    return fields
