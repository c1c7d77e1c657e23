"""``weights.npz``: integers of constants that cannot be computed from the float model.

Arrays are named by position, and a list has their tensor ends: a name in a zip archive could
contain anything.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from intact.config import StateMeaning, TensorQuantConfig
from intact.errors import IntactError, PlanError
from intact.graph import Graph
from intact.plan.quantized_graph import Codes, Direction, TensorEnd

_LIST = "ends"
_TYPES = frozenset(np.dtype(name) for name in ("i1", "u1", "i2", "u2", "i4"))
_MOST_LIST_BYTES = 1 << 26
_PIECE = 1 << 20


def baked_to_bytes(baked: Mapping[TensorEnd, Codes]) -> bytes:
    """Encode the file; equal integers give equal bytes."""
    ends = json.dumps([str(end) for end in baked]).encode()
    arrays = {str(at): np.ascontiguousarray(codes) for at, codes in enumerate(baked.values())}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{_LIST: np.frombuffer(ends, np.uint8), **arrays})
    return buffer.getvalue()


def baked_hash(baked: Mapping[TensorEnd, Codes]) -> str:
    """Compute the SHA-256 of the integers in hexadecimal; "" if there are none."""
    if not baked:
        return ""
    digest = hashlib.sha256()
    for end, codes in baked.items():
        head = json.dumps([str(end), codes.dtype.newbyteorder("<").str, codes.shape])
        digest.update(head.encode())
        digest.update(np.ascontiguousarray(codes, codes.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def load_baked(
    path: Path, graph: Graph, configs: Mapping[TensorEnd, TensorQuantConfig], expected: str
) -> dict[TensorEnd, Codes]:
    """Read integers and check them against their plan.

    Args:
        path: The file; shapes are compared with the constants before memory is allocated.
        graph: The model.
        configs: The configs of the plan: ends must be BAKED, and integers in their range.
        expected: The hash that the plan has.

    Raises:
        PlanError: The file is missing, damaged or belongs to another plan.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            baked = dict(_members(archive, graph, configs))
    except IntactError as error:
        raise PlanError(f"{path}: {error}", remedy="import the model again") from error
    except Exception as error:  # zipfile, zlib, tokenize and numpy raise a dozen unrelated classes
        reason = str(error) or type(error).__name__
        raise PlanError(f"{path}: cannot be read as integers of a plan ({reason})") from error
    if baked_hash(baked) != expected:
        raise PlanError(f"{path}: not the integers of this plan", remedy="import the model again")
    return baked


def _members(
    archive: zipfile.ZipFile, graph: Graph, configs: Mapping[TensorEnd, TensorQuantConfig]
) -> Iterator[tuple[TensorEnd, Codes]]:
    with archive.open(f"{_LIST}.npy") as file:
        listed = json.loads(_read(file, _LIST, None).tobytes())
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise ValueError("it has no list of tensor ends")
    if len(archive.namelist()) != len(listed) + 1:
        raise ValueError("its members do not match its list")
    for position, text in enumerate(listed):
        end = TensorEnd.parse(text)
        config = configs.get(end)
        if config is None or config.meaning is not StateMeaning.BAKED:
            raise ValueError(f"{end} is not baked in the plan")
        with archive.open(f"{position}.npy") as file:
            codes = _read(file, text, _shape(graph, end))
        outside = codes[(codes < config.quant_min) | (codes > config.quant_max)]
        if outside.size:
            span = f"{config.quant_min}..{config.quant_max}"
            raise ValueError(f"{end} contains {outside[0]}, the plan's range is {span}")
        yield end, codes


def _shape(graph: Graph, end: TensorEnd) -> tuple[int, ...]:
    """Return the shape of the constant at an end."""
    inputs = graph.node(end.node).inputs if end.direction is Direction.INPUT else ()
    array = graph.constant(inputs[end.slot]) if end.slot < len(inputs) else None
    if array is None:
        raise ValueError(f"{end} is not a constant of the model")
    return tuple(array.shape)


def _read(file: IO[bytes], what: str, expected: tuple[int, ...] | None) -> Codes:
    """Read an array in pieces, so that a false header allocates no memory.

    Args:
        file: A member of the archive.
        what: Name for messages.
        expected: Its shape; None for the list, which is a limited number of bytes.
    """
    version = npy.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{what} is stored in npy version {version}")
    shape, fortran, dtype = npy.read_array_header_1_0(file)
    if dtype.newbyteorder("=") not in _TYPES or fortran or expected not in (None, shape):
        raise ValueError(f"{what} holds {dtype} of shape {list(shape)}")
    size = math.prod(shape) * dtype.itemsize
    if expected is None and (dtype != np.uint8 or size > _MOST_LIST_BYTES):
        raise ValueError("its list of tensor ends is too long")
    data = bytearray()
    while len(data) < size and (piece := file.read(min(_PIECE, size - len(data)))):
        data += piece
    if len(data) != size or file.read(1):
        raise ValueError(f"{what} does not have the length given by its shape")
    codes = np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    codes.setflags(write=False)
    return codes
