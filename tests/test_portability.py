"""What other systems need, as far as Linux can show it: no forks, other locks and encodings."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intact
from intact import _files, demo
from intact.data import archive
from intact.engines import cpu
from intact.errors import OutputError, UsageError
from intact.graph import normalize
from intact.graph.files import trial
from intact.graph.files.regular import open_file
from intact.results.request import distinct_names
from intact.search.logs import log
from intact.targets import InstructionSet, Target, load_target
from tests.models import ModelBuilder

NOWHERE = Path("/no/such/cpuinfo")


def named(name: str) -> Target:
    import msgspec

    return msgspec.structs.replace(load_target("onnxruntime"), name=name)


@pytest.mark.skipif(not cpu._CPUINFO.is_file(), reason="compares with Linux's own list")
def test_the_processor_is_asked_itself_where_there_is_no_list() -> None:
    known = cpu.instruction_sets()
    cpu._ask_system.cache_clear()
    asked = cpu.instruction_sets(NOWHERE)
    # LLVM leaves AMX out where the system has not switched it on.
    assert set(known) - {InstructionSet.AMX} <= set(asked) <= set(known)
    assert cpu.detect_cpu(NOWHERE).saturates_pairs == cpu.detect_cpu().saturates_pairs


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"hw.optional.arm.FEAT_DotProd": 1, "hw.optional.neon": 1}, InstructionSet.DOT_PRODUCT),
        (
            {"hw.optional.arm.FEAT_I8MM": 1, "hw.optional.arm.FEAT_DotProd": 1},
            InstructionSet.I8MM,
        ),
        ({"hw.optional.avx2_0": 1, "hw.optional.avx512bw": 0}, InstructionSet.AVX2),
    ],
)
def test_macos_tells_the_processor(
    told: dict[str, int], expected: InstructionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(name: str) -> bytes:
        return b"Apple M4\0" if "brand" in name else told.get(name, 0).to_bytes(4, "little")

    monkeypatch.setattr(cpu, "_sysctl", ask)
    monkeypatch.setattr(cpu, "_llvm_flags", frozenset)
    monkeypatch.setattr(sys, "platform", "darwin")
    cpu._ask_system.cache_clear()
    try:
        found = cpu.detect_cpu(NOWHERE)
    finally:
        cpu._ask_system.cache_clear()
    assert (found.name, found.instruction_set) == ("Apple M4", expected)


def test_windows_tells_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Key:
        def __enter__(self) -> Key:
            return self

        def __exit__(self, *_: object) -> None: ...

    registry: Any = types.ModuleType("winreg")
    registry.HKEY_LOCAL_MACHINE = 1
    registry.OpenKey = lambda _root, path: Key() if path == cpu._REGISTRY else None
    registry.QueryValueEx = lambda _key, name: (f"{name} of AMD ", 1)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(cpu, "_llvm_flags", lambda: frozenset(["avx2", "avx_vnni"]))
    monkeypatch.setattr(sys, "platform", "win32")
    cpu._ask_system.cache_clear()
    try:
        found = cpu.detect_cpu(NOWHERE)
    finally:
        cpu._ask_system.cache_clear()
    assert found == cpu.Cpu("ProcessorNameString of AMD", "AVX-VNNI", False)


def test_windows_tells_its_memory() -> None:
    def ask(pointer: Any) -> int:
        status = pointer._obj
        assert status.length == 64
        status.available = 3 << 30
        return 1

    assert archive._available(ask) == 3 << 30
    assert archive._available(lambda _: 0) > 1 << 60


def abort(_content: bytes, code: int) -> None:
    os.abort() if code else None


def test_work_is_tried_in_another_process_where_none_can_be_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_FORKS", False)
    monkeypatch.delattr(os, "fork", raising=False)
    here = f"{__name__}:abort"
    assert trial.survives(os.abort)  # it is not done
    assert trial.survives(os.abort, trial.ProcessTask(here, bytes, (0,)))
    assert not trial.survives(os.abort, trial.ProcessTask(here, bytes, (1,)))
    assert trial.survives(os.abort, trial.ProcessTask("no.such:thing", bytes))  # not done
    old = ModelBuilder(9)
    x = old.node("Conv", old.input("x", ["n", 2, 8, 8]), old.weight(4, 2, 3, 3))
    old.output(old.node("Relu", x, out="y"))
    assert normalize(old.build()).nodes


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places that were locked, as msvcrt does it: until the file is closed."""
    fcntl = pytest.importorskip("fcntl")
    places: list[int] = []

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        places.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "locked") from error

    system: Any = types.ModuleType("msvcrt")
    system.LK_NBLCK, system.locking = 2, locking
    monkeypatch.setitem(sys.modules, "msvcrt", system)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    return places


def test_files_are_locked_as_windows_does(tmp_path: Path, windows_locks: list[int]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789")
    with path.open("r+b", buffering=0) as one, path.open("r+b", buffering=0) as other:
        one.seek(4)
        _files.lock(one.fileno(), inherited=True)
        assert one.read(2) == b"45"  # the place is kept
        assert windows_locks == [1 << 30]  # behind all that readers read
        with pytest.raises(BlockingIOError):
            _files.lock(other.fileno(), inherited=False)
        with pytest.raises(OutputError, match="another search is writing this log"):
            log._lock(other, path)


@pytest.mark.usefixtures("windows_locks")
def test_results_are_exchanged_where_folders_cannot_be_swapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intact.results.exchange._swap", lambda *_: False)
    data = np.load(demo.calibration_path())["image"][:8]
    for method in ("minmax", "mse"):
        result = intact.quantize(demo.model_path(), data, method=method, output=tmp_path / "out")
    assert intact.load_result(tmp_path / "out").plan.provenance.method == "mse"
    assert result.folder is not None
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_the_system_does_not_open_is_called_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(IsADirectoryError):
        open_file(tmp_path)
    with pytest.raises(PermissionError):
        open_file(tmp_path / "file")


@pytest.mark.parametrize("names", [("Chip", "chip"), ("nul",), ("COM1.x",), ("a.",), ("a ",)])
def test_targets_whose_folders_other_systems_do_not_tell_apart(names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="rename it in its file"):
        distinct_names([named(name) for name in names])


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437"])
@pytest.mark.parametrize(
    ("words", "read"),
    [
        (
            ["targets"],
            lambda text: "onnxruntime" in text and ("---" in text or "\u2500\u2500" in text),
        ),
        (["inspect", "mod\u00e8le\u4e2d.onnx", "--json"], json.loads),
        (["inspect", "not \u4e2d.onnx"], lambda text: not text),
    ],
)
def test_output_in_encodings_of_few_characters(
    encoding: str, words: list[str], read: Callable[[str], object], tmp_path: Path
) -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["n", 2, 8, 8]), b.weight(4, 2, 3, 3), name="\u4e2d\u00e8")
    b.output(b.node("Relu", x, out="y"))
    (tmp_path / "mod\u00e8le\u4e2d.onnx").write_bytes(b.build().SerializeToString())
    done = subprocess.run(
        [sys.executable, "-m", "intact", *words],
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == (2 if "not" in words[1:2] or words[-1].startswith("not") else 0)
    assert b"internal error" not in done.stderr
    assert read(done.stdout.decode(encoding))
