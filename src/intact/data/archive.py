"""Arrays from ``.npy`` and ``.npz`` files: mapped into memory where they lie there as they are.

A member of an archive that is stored (``numpy.savez``) is a whole ``.npy`` file inside the zip
file, so that its data can be mapped like that of a file of its own. A compressed member
(``numpy.savez_compressed``) has to be read whole. What a file says of itself is held against its
size before memory is asked for; nothing in it is run.

Formats: numpy's ``numpy.lib.format`` and PKWARE's APPNOTE.TXT (sections 4.3.6 to 4.3.8).
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from intact.errors import DataError

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED = 0x1  # bit of the flags
_LARGEST_RATIO = 1032
"""Deflate packs at most so many bytes into one (zlib's technical notes); other methods do more,
but numpy writes no other."""
_CHECKED_BYTES = 64 << 20
"""Stored members up to this size are read once for their checksum (30 ms); larger ones are not."""
_LONGEST_HEADER = 10_000  # what numpy accepts without trust
_CHUNK = 1 << 20


class _Header(NamedTuple):
    """What the first bytes of an ``.npy`` say."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str
    length: int

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class DamagedError(ValueError):
    """A file that is not what it says it is."""


class PickledError(ValueError):
    """An array of Python objects."""


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Return the array of an ``.npy`` file, read-only and mapped into memory.

    Raises:
        DamagedError: The file is shorter than its header says, or the header cannot be read.
        PickledError: It holds Python objects.
    """
    with path.open("rb") as file:
        header = _read_header(file)
    if header.length + header.data_bytes > path.stat().st_size:
        raise DamagedError(f"{list(header.shape)} of {header.dtype} do not fit into the file")
    return _mapped(path, header, 0)


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name, the stored ones mapped into memory.

    Raises:
        DamagedError: Members overlap, leave the file or are not of the size that their headers say.
        PickledError: A member holds Python objects.
        DataError: The compressed members are larger than the memory that is free, or a member is
            encrypted or packed by a method that numpy does not use.
    """
    size = path.stat().st_size
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) < len(names):
            raise DamagedError("two members have one name")
        for member in members:
            _refuse_foreign(path, member)
        _refuse_too_large(path, [m for m in members if m.compress_type == zipfile.ZIP_DEFLATED])
        starts = {m.filename: _data_start(file, m, size) for m in members}
        _refuse_overlaps(members, starts)
        arrays = {}
        for name, member in zip(names, members, strict=True):
            if member.compress_type == zipfile.ZIP_STORED:
                arrays[name] = _map_member(path, file, member, starts[member.filename])
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
            f"{path}: member {member.filename!r} is packed by method {member.compress_type}",
            remedy="write it with numpy.savez",
        )


def _refuse_too_large(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuse what has to be read whole and cannot be, before memory is asked for."""
    for member in members:
        if member.file_size > _LARGEST_RATIO * member.compress_size + _CHUNK:
            raise DamagedError(
                f"member {member.filename!r} says that {member.compress_size} bytes hold "
                f"{member.file_size}"
            )
    needed, free = sum(member.file_size for member in members), _free_memory()
    if needed > free:
        raise DataError(
            f"{path}: its compressed arrays need {needed / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} are free",
            remedy="write it with numpy.savez, uncompressed: then only parts of it are read",
        )


def _data_start(file: IO[bytes], member: zipfile.ZipInfo, size: int) -> int:
    """Return where a member's bytes begin, as its local header says."""
    file.seek(member.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size:
        raise DamagedError(f"member {member.filename!r} lies outside the file")
    signature, _, _, method, *_, name_length, extra_length = _LOCAL_HEADER.unpack(raw)
    if signature != _LOCAL_SIGNATURE or method != member.compress_type:
        raise DamagedError(f"member {member.filename!r} has another local header")
    start: int = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + member.compress_size > size:
        raise DamagedError(f"member {member.filename!r} lies outside the file")
    return start


def _refuse_overlaps(members: list[zipfile.ZipInfo], starts: dict[str, int]) -> None:
    """Refuse members that share bytes: a small file could hold any amount of data that way."""
    end = 0
    for member in sorted(members, key=lambda each: each.header_offset):
        if member.header_offset < end:
            raise DamagedError(f"member {member.filename!r} overlaps another")
        end = starts[member.filename] + member.compress_size


def _map_member(
    path: Path, file: IO[bytes], member: zipfile.ZipInfo, start: int
) -> npt.NDArray[Any]:
    if member.compress_size != member.file_size:
        raise DamagedError(f"member {member.filename!r} is stored, and has two sizes")
    if 0 < member.file_size <= _CHECKED_BYTES:
        data: Any = np.memmap(path, np.uint8, "r", start, (member.file_size,))
        if zlib.crc32(data) != member.CRC:
            raise DamagedError(f"member {member.filename!r} has another checksum")
    file.seek(start)
    header = _read_header(file)
    _refuse_other_size(header, member)
    return _mapped(path, header, start)


def _read_member(packed: IO[bytes], member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    header = _read_header(packed)
    _refuse_other_size(header, member)
    data = np.empty(header.data_bytes, np.uint8)
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
    """Read the header of an ``.npy``; the file is left at the data."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise DamagedError(f"version {version} of the npy format, which is for records")
    start = file.tell()
    if version == (2, 0):  # the length has 32 bits, and numpy reads so much before it complains
        if int.from_bytes(file.read(4), "little") > _LONGEST_HEADER:
            raise DamagedError("a header of records")
        file.seek(start)
    shape, is_fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise PickledError
    if any(size < 0 for size in shape) or not dtype.itemsize:
        raise DamagedError(f"an array of shape {list(shape)} and {dtype}")
    # The reader was at the start of the magic string, whose length it does not tell.
    length = npy.MAGIC_LEN + file.tell() - start
    return _Header(tuple(shape), dtype, "F" if is_fortran else "C", length)


def _mapped(path: Path, header: _Header, start: int) -> npt.NDArray[Any]:
    if not header.data_bytes:
        return np.empty(header.shape, header.dtype)
    order: Any = header.order
    return np.memmap(path, header.dtype, "r", start + header.length, header.shape, order)


def _free_memory() -> int:
    """Return the bytes of memory that can be had; all that there are where only these are known."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:  # Linux
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        pass
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 1 << 62  # not told: numpy says when there is no more
