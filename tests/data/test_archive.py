"""Files of arrays are mapped where they can be, and believed only as far as their size goes."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intact.data import archive
from intact.data.sources import load_arrays
from intact.errors import DataError

IMAGES = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def npy(array: np.ndarray, **changes: Any) -> bytes:
    """An ``.npy`` file, with other claims in its header."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape} | changes
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def write_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    found = load_arrays(path)
    assert isinstance(found, dict)
    return found


def is_mapped(array: np.ndarray) -> bool:
    return isinstance(array, np.memmap)


@pytest.mark.parametrize(
    "array",
    [
        IMAGES,
        np.asfortranarray(IMAGES),
        IMAGES.astype(">f4"),
        IMAGES.astype(np.uint8)[:, :1],
        np.zeros((0, 3, 2), np.float32),
        np.array(7),
        np.ones((3, 5), bool),
    ],
    ids=["plain", "fortran", "big endian", "bytes", "empty", "scalar", "bool"],
)
def test_what_is_stored_is_mapped_and_what_is_packed_is_read(
    tmp_path: Path, array: np.ndarray
) -> None:
    np.save(tmp_path / "one.npy", array)
    np.savez(tmp_path / "stored.npz", x=array, other=IMAGES)
    np.savez_compressed(tmp_path / "packed.npz", x=array, other=IMAGES)
    one = load_arrays(tmp_path / "one.npy")
    stored = arrays_of(tmp_path / "stored.npz")["x"]
    packed = arrays_of(tmp_path / "packed.npz")["x"]
    for found in (one, stored, packed):
        assert isinstance(found, np.ndarray)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    assert isinstance(one, np.ndarray)
    assert is_mapped(one) == is_mapped(stored) == (array.size > 0)
    assert not is_mapped(packed)


def sparse_archive(path: Path, shape: tuple[int, ...]) -> None:
    """A stored archive of zeros that takes no room on the disk."""
    header = npy(np.zeros(0, np.uint8), shape=shape)
    size = len(header) + int(np.prod(shape))
    with zipfile.ZipFile(path, "w") as file:
        member = zipfile.ZipInfo("image.npy")
        member.file_size, member.compress_size, member.CRC = size, size, 0
        member.header_offset = 0
        stream: Any = file.fp
        stream.write(member.FileHeader(zip64=True))
        stream.write(header)
        stream.seek(size - len(header) - 1, 1)
        stream.write(b"\7")
        file.filelist.append(member)
        file.start_dir = stream.tell()
        file._didModify = True  # type: ignore[attr-defined]


def test_an_archive_larger_than_4_gib_is_read_in_little_memory(tmp_path: Path) -> None:
    path, shape = tmp_path / "large.npz", (450_000, 3, 64, 64)
    sparse_archive(path, shape)
    assert path.stat().st_size > 5 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    run = textwrap.dedent(f"""
        import resource
        from intact.graph import normalize
        from intact.data.sources import open_samples
        from tests.models import ModelBuilder

        b = ModelBuilder()
        b.node("Relu", b.input("image", ["n", 3, 64, 64]), out="y")
        b.output("y")
        graph = normalize(b.build())
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        private = int(status["VmData"].split()[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (private + (96 << 20),) * 2)
        samples = open_samples({str(path)!r}, graph, limit=300)
        assert sum(count for _, count in samples.batches(32)) == 300
        whole = next(iter(samples.reader))["image"]
        assert whole.shape == {shape} and whole[-1].max() == 7
    """)
    found = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )
    assert found.returncode == 0, found.stderr


def patched(path: Path, old: bytes, new: bytes, *, central: bool) -> Path:
    """Replace bytes after the signature of the first local or central header."""
    data = path.read_bytes()
    start = data.index(b"PK\1\2" if central else b"PK\3\4")
    at = data.index(old, start)
    path.write_bytes(data[:at] + new + data[at + len(old) :])
    return path


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    good = npy(IMAGES)
    size = struct.pack("<I", len(good))
    for new in (size[::-1], struct.pack("<I", len(good) - 4), struct.pack("<I", len(good) + 4)):
        path = write_zip(tmp_path / "lying.npz", {"x.npy": good})
        patched(path, size + size, new + new, central=True)
        with pytest.raises(DataError, match="damaged or truncated"):
            load_arrays(path)
        path = write_zip(tmp_path / "lying.npz", {"x.npy": good})
        patched(path, size + size, size + new, central=True)  # stored, and two sizes
        with pytest.raises(DataError, match="damaged or truncated"):
            load_arrays(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "shape", [(5, 3, 2), (3, 3, 2), (1 << 40,), (1 << 40, 1 << 40, 1 << 40), (-1, 3), (-4, -6)]
)
def test_shapes_that_lie_are_refused(tmp_path: Path, shape: tuple[int, ...], method: int) -> None:
    path = write_zip(tmp_path / "lying.npz", {"x.npy": npy(IMAGES, shape=shape)}, method)
    with pytest.raises(DataError, match="damaged or truncated"):
        load_arrays(path)
    if int(np.prod(np.array(shape, object))) > IMAGES.size:
        (tmp_path / "lying.npy").write_bytes(npy(IMAGES, shape=shape))
        with pytest.raises(DataError, match="damaged or truncated"):
            load_arrays(tmp_path / "lying.npy")


def test_a_header_that_never_ends_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "long.npy"
    with path.open("wb") as file:
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1))
        file.truncate(5 << 30)
    with pytest.raises(DataError, match="a header of records"):
        load_arrays(path)


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((2000, 1000), np.float32))
    with monkeypatch.context() as changed:
        changed.setattr(archive, "free_memory", lambda: 7 << 20)
        with pytest.raises(DataError, match=r"need 0\.0 GiB of memory.*numpy\.savez \(uncompr"):
            load_arrays(path)
    packed = zipfile.ZipFile(path).infolist()[0]
    old = struct.pack("<II", packed.compress_size, packed.file_size)
    patched(path, old, struct.pack("<II", packed.compress_size, 3 << 30), central=True)
    with pytest.raises(DataError, match="claims that"):
        load_arrays(path)


@pytest.mark.parametrize("names", archive._LIMITS)
def test_a_container_may_have_less_memory_than_its_machine(
    tmp_path: Path, names: tuple[str, str, str]
) -> None:
    assert archive._free_of_container(tmp_path) == 1 << 62
    (tmp_path / "memory").mkdir()
    for name, text in zip(names, ["1000\n", "700\n", "anon 500\ninactive_file 150\n"], strict=True):
        (tmp_path / name).write_text(text)
    assert archive._free_of_container(tmp_path) == 450
    (tmp_path / names[0]).write_text("max\n")
    assert archive._free_of_container(tmp_path) == 1 << 62


def test_members_that_overlap_or_lie_outside_are_refused(tmp_path: Path) -> None:
    inner = npy(IMAGES)
    path = write_zip(tmp_path / "overlapping.npz", {"a.npy": inner, "b.npy": inner})
    second = zipfile.ZipFile(path).infolist()[1].header_offset
    entry = path.read_bytes().rindex(b"PK\1\2")
    for offset in (0, second - 8, 1 << 30):
        data = bytearray(path.read_bytes())
        data[entry + 42 : entry + 46] = struct.pack("<I", offset)
        (tmp_path / "changed.npz").write_bytes(data)
        with pytest.raises(DataError, match="damaged or truncated"):
            load_arrays(tmp_path / "changed.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_is_noticed(tmp_path: Path, method: int) -> None:
    path = write_zip(tmp_path / "flipped.npz", {"x.npy": npy(IMAGES)}, method)
    data = bytearray(path.read_bytes())
    data[zipfile.ZipFile(path).infolist()[0].compress_size // 2 + 30] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged or truncated"):
        load_arrays(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_are_no_arrays_are_refused(tmp_path: Path, method: int) -> None:
    for content, says in (
        (b"hello, this is a text", "damaged"),
        (b"", "damaged"),
        (npy(IMAGES, descr="|O"), "pickled"),
        (npy(IMAGES, descr="|V0"), "damaged"),
    ):
        path = write_zip(tmp_path / "other.npz", {"x.npy": content}, method)
        with pytest.raises(DataError, match=says):
            load_arrays(path)


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "odd.npz", {"x.npy": npy(IMAGES)}, zipfile.ZIP_BZIP2)
    with pytest.raises(DataError, match="compressed by method 12"):
        load_arrays(path)
    path = write_zip(tmp_path / "odd.npz", {"x.npy": npy(IMAGES), "x": npy(IMAGES)})
    with pytest.raises(DataError, match="two members have one name"):
        load_arrays(path)
    path = write_zip(tmp_path / "odd.npz", {"x.npy": npy(IMAGES)})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="encrypted"):
        load_arrays(path)


def test_more_members_than_files_may_be_open_are_read(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    members = {f"a{k}": np.full(3, k, np.float32) for k in range(600)}
    write_zip(tmp_path / "many.npz", {f"{name}.npy": npy(a) for name, a in members.items()})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
    try:
        found = arrays_of(tmp_path / "many.npz")
        assert all(np.array_equal(found[name], array) for name, array in members.items())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert is_mapped(found["a7"])
