"""What decides whether 8-bit pairs saturate."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.engines.cpu import Cpu, detect_cpu


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model name\t: Good CPU\nflags\t\t: fpu avx2 avx512bw avx512_vnni amx_int8\n",
            Cpu("Good CPU", "AMX", False),
        ),
        ("model name: Old\nflags: avx2 avx512bw\n", Cpu("Old", "AVX-512", True)),
        ("model name: Older\nflags: sse avx2\n", Cpu("Older", "AVX2", True)),
        ("model name: New\nflags: avx2 avx_vnni\n", Cpu("New", "AVX-VNNI", False)),
        ("model name: Ancient\nflags: sse\n", Cpu("Ancient", "unknown", None)),
        ("model name: A\nFeatures: asimd asimddp\n", Cpu("A", "Arm dot product", False)),
    ],
)
def test_known_processors(tmp_path: Path, text: str, expected: Cpu) -> None:
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert detect_cpu(tmp_path / "cpuinfo") == expected


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intact.engines.cpu._llvm_flags", frozenset)
    cpu = detect_cpu(tmp_path / "none")
    assert (cpu.instruction_set, cpu.saturates_pairs) == ("unknown", None)
    assert cpu.name
