"""Arrays from ``.npy`` and ``.npz`` files, memory-mapped where possible.

An uncompressed member of an archive (``numpy.savez``) is a whole ``.npy`` file inside the zip file,
so its data can be mapped. A compressed member (``numpy.savez_compressed``) must be read completely.
Headers are compared with the file size before memory is allocated; nothing in a file is executed.

Formats: numpy's ``numpy.lib.format`` and PKWARE's APPNOTE.TXT (sections 4.3.6 to 4.3.8).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from intact.errors import DataError
from intact.graph.files.limits import remedy, unpacked_limit
from intact.graph.files.regular import open_file

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1  # bit of the flags
_LARGEST_RATIO = 1032
"""The largest compression ratio of deflate (zlib's technical notes), the only method that numpy
uses.
"""
_CHECKED_BYTES = 64 << 20
"""Checksums of uncompressed members are verified up to this size (30 ms)."""
_LONGEST_HEADER = 10_000  # numpy's limit for untrusted files
_CHUNK = 1 << 20


class _Header(NamedTuple):
    """The header of an ``.npy``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    length: int

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class DamagedError(ValueError):
    """A file whose header and content do not match."""


class PickledError(ValueError):
    """An array of Python objects."""


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Map the array of an ``.npy`` file into memory, read-only.

    Raises:
        DamagedError: The file is shorter than its header says, or the header cannot be read.
        PickledError: The file holds Python objects.
    """
    with open_file(path) as file:
        # The header is compared with the file before anything is mapped by it.
        header = _read_header(file)
    if header.length + header.data_bytes > path.stat().st_size:
        raise DamagedError(f"{list(header.shape)} of {header.dtype} do not fit into the file")
    return _array_at(np.memmap(path, np.uint8, "r"), header, 0)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an ``.npz`` file by name; uncompressed ones are memory-mapped.

    Raises:
        DamagedError: Members overlap, exceed the file or do not have the size in their headers.
        PickledError: A member holds Python objects.
        DataError: The compressed members exceed the free memory, or unpack to far more than the
            file (`intact.graph.files.limits`), or a member is encrypted or
            compressed by a method that numpy does not use.
    """
    size = path.stat().st_size
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        # A second member of a name would hide the first: what is checked might not be what is read.
        if len(set(names)) < len(names):
            raise DamagedError("two members have one name")
        for member in members:
            _refuse_foreign(path, member)
        # What is stored is mapped and takes no memory.
        _refuse_too_large(path, size, [m for m in members if m.compress_type])
        starts = {m.filename: _data_start(file, m, size) for m in members}
        _refuse_overlaps(members, starts)
        # Mapped once: a map for each of thousands of members would take as many open files.
        whole = np.memmap(path, np.uint8, "r")
        arrays = {}
        for name, member in zip(names, members, strict=True):
            if member.compress_type == zipfile.ZIP_STORED:
                arrays[name] = _map_member(whole, file, member, starts[member.filename])
            else:
                with archive.open(member) as packed:
                    arrays[name] = _read_member(packed, member)
    return arrays


def _refuse_foreign(path: Path, member: zipfile.ZipInfo) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise DataError(
            f"{path}: member {member.filename!r} is encrypted", remedy="write it with numpy.savez"
        )
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{path}: member {member.filename!r} is compressed by method {member.compress_type}",
            remedy="write it with numpy.savez",
        )


def _refuse_too_large(path: Path, size: int, members: list[zipfile.ZipInfo]) -> None:
    """Check the size of compressed members before memory is allocated."""
    mend = "write it with numpy.savez (uncompressed), which is read in parts"
    for member in members:
        # With room for members that are nearly empty.
        if member.file_size > _LARGEST_RATIO * member.compress_size + _CHUNK:
            raise DamagedError(
                f"member {member.filename!r} claims that {member.compress_size} bytes hold "
                f"{member.file_size}"
            )
    needed, free = sum(member.file_size for member in members), free_memory()
    if needed > free:
        raise DataError(
            f"{path}: its compressed arrays need {needed / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} are free",
            remedy=mend,
        )
    allowed = unpacked_limit(size)
    if needed > allowed:
        raise DataError(
            f"{path}: its {size} bytes unpack to {needed}, {allowed} are allowed",
            remedy=remedy(needed, allowed, mend),
        )


def _data_start(file: IO[bytes], member: zipfile.ZipInfo, size: int) -> int:
    """Compute the offset of a member's bytes from its local header."""
    file.seek(member.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size:
        raise DamagedError(f"member {member.filename!r} is outside the file")
    # The local header has its own lengths, which may differ from those of the directory.
    signature, _, _, method, *_, name_length, extra_length = _LOCAL_HEADER.unpack(raw)
    if signature != _LOCAL_SIGNATURE or method != member.compress_type:
        raise DamagedError(f"member {member.filename!r} has another local header")
    start: int = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + member.compress_size > size:
        raise DamagedError(f"member {member.filename!r} is outside the file")
    return start


def _refuse_overlaps(members: list[zipfile.ZipInfo], starts: dict[str, int]) -> None:
    """Check that members do not overlap: otherwise a small file could hold any amount of data."""
    end = 0
    for member in sorted(members, key=lambda each: each.header_offset):
        if member.header_offset < end:
            raise DamagedError(f"member {member.filename!r} overlaps another")
        end = starts[member.filename] + member.compress_size


def _map_member(
    whole: npt.NDArray[np.uint8], file: IO[bytes], member: zipfile.ZipInfo, start: int
) -> npt.NDArray[Any]:
    if member.compress_size != member.file_size:
        raise DamagedError(
            f"member {member.filename!r} is uncompressed, but has two different sizes"
        )
    # Of large members the checksum would read the whole file, which mapping is there to avoid.
    if 0 < member.file_size <= _CHECKED_BYTES:
        data = whole[start : start + member.file_size].data
        if zlib.crc32(data) != member.CRC:
            raise DamagedError(f"member {member.filename!r} has another checksum")
    file.seek(start)
    header = _read_header(file)
    _refuse_other_size(header, member)
    return _array_at(whole, header, start)


def _read_member(packed: IO[bytes], member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    header = _read_header(packed)
    _refuse_other_size(header, member)
    data = np.empty(header.data_bytes, np.uint8)
    # In chunks into one array: reading at once would hold the content twice.
    for start in range(0, data.size, _CHUNK):
        part = packed.read(min(_CHUNK, data.size - start))
        if len(part) < min(_CHUNK, data.size - start):
            raise DamagedError(f"member {member.filename!r} ends early")
        data[start : start + len(part)] = np.frombuffer(part, np.uint8)
    shape = header.shape if header.order == "C" else header.shape[::-1]
    array = data.view(header.dtype).reshape(shape)
    return array if header.order == "C" else array.T


def _refuse_other_size(header: _Header, member: zipfile.ZipInfo) -> None:
    if header.length + header.data_bytes != member.file_size:
        raise DamagedError(
            f"member {member.filename!r} has {member.file_size} bytes, "
            f"{list(header.shape)} of {header.dtype} have {header.length + header.data_bytes}"
        )


def _read_header(file: IO[bytes]) -> _Header:
    """Read the header of an ``.npy``, up to the data."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise DamagedError(f"version {version} of the npy format, which is for records")
    start = file.tell()
    # A header of 4 GiB is refused before it is read.
    if version == (2, 0):  # the length has 32 bits, and numpy reads that much before it raises
        if int.from_bytes(file.read(4), "little") > _LONGEST_HEADER:
            raise DamagedError("a header of records")
        file.seek(start)
    shape, is_fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise PickledError
    if any(size < 0 for size in shape) or not dtype.itemsize:
        raise DamagedError(f"an array of shape {list(shape)} and {dtype}")
    # The header starts with the magic string, which was read before ``start``.
    length = npy.MAGIC_LEN + file.tell() - start
    return _Header(tuple(shape), dtype, "F" if is_fortran else "C", length)


def _array_at(whole: npt.NDArray[np.uint8], header: _Header, start: int) -> npt.NDArray[Any]:
    """View the array of an ``.npy`` that begins at a byte of a file that is mapped."""
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    first = start + header.length
    data = whole[first : first + header.data_bytes].view(header.dtype)
    return data.reshape(header.shape, order="C" if header.order == "C" else "F")


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "a", "b", "c", "d", "e")),
    ]


def _available(ask: Callable[[Any], int]) -> int:
    """Return the memory that Windows has available; a large number where it does not say."""
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    return int(status.available) if ask(ctypes.byref(status)) else 1 << 62


def free_memory() -> int:
    """Return the available memory in bytes; the total memory if only that is known.

    In a container that is what the container may still take.
    """
    return min(_free_of_machine(), _free_of_container())


_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Files with the limit, what is taken, and of what, of both versions of Linux's control groups."""


def _free_of_container(folder: Path = _CGROUP) -> int:
    """Return what a control group leaves; a large number where there is none, or no limit."""
    for names in _LIMITS:
        # The first says "max" where there is no limit.
        with contextlib.suppress(OSError, ValueError):
            most, taken, parts = ((folder / name).read_text("ascii") for name in names)
            kept = dict(line.split() for line in parts.splitlines())
            # Files that were read are forgotten where memory is needed.
            taken_for_good = int(taken) - int(kept.get("inactive_file", 0))
            return max(int(most) - taken_for_good, 0)
    return 1 << 62


def _free_of_machine() -> int:
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:  # Linux
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        pass
    windows = getattr(ctypes, "windll", None)
    if windows is not None:
        return _available(windows.kernel32.GlobalMemoryStatusEx)
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 62  # unknown: numpy raises if there is not enough
