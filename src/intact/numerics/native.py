"""Loops as machine code that is loaded without the compiler.

numba compiles the loops of a module at the first call ever. Loading them again through numba's own
cache takes 0.35 s for numba and 0.05 s or more a function, which is most of the time that a small
model takes to be quantized. Here the machine code is kept in a file, and later processes load it
with llvmlite alone, in some 0.05 s.

A module marks its loops with a :class:`Kernels`::

    _KERNELS = Kernels(__name__)


    @_KERNELS.inner
    def _square(value): ...


    @_KERNELS.entry("float64(float64[:])")
    def sum_of_squares(values): ...

The functions are written for numba's nopython mode. They may not allocate arrays nor raise: the
machine code has to do without numba's runtime. Division by zero gives infinity or NaN.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import platform
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from intact._files import appearing, user_cache, without_links

if TYPE_CHECKING:
    import llvmlite.binding as llvm

Function = TypeVar("Function", bound=Callable[..., Any])

_C_TYPES: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int64": ctypes.c_int64,
}
"""Scalars that are passed by value."""
_LIBRARY = frozenset(["cos", "exp", "exp2", "ldexp", "log", "memcpy", "memmove", "memset", "pow"])
"""What the machine code may call: functions that every process has."""
_DIGEST_BYTES = 32


class Kernels:
    """The compiled loops of one module.

    Args:
        module: Full name of the module that defines them.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._inner: list[FunctionType] = []
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._engine: llvm.ExecutionEngine | None = None

    def inner(self, function: Function) -> Function:
        """Mark a function that others of the module call; it must stand above them."""
        self._inner.append(cast(FunctionType, function))
        return function

    def entry(self, signature: str) -> Callable[[Function], Function]:
        """Let a function be called from Python; the call releases the GIL.

        Args:
            signature: In numba's words: ``int64(float32[:], float64)``. Arrays are C-contiguous.
                Results are scalars or ``void``.
        """

        def mark(function: Function) -> Function:
            entry = _Entry(self, cast(FunctionType, function), signature)
            self._entries[function.__name__] = entry
            return cast(Function, entry)

        return mark

    def address(self, name: str) -> int:
        """Look up where the machine code of an entry lies; compile or load it first."""
        with self._lock:
            if self._engine is None:
                self._engine = _engine(self.object_file())
            return int(self._engine.get_function_address(name))

    def load_beside(self) -> None:
        """Begin to load the machine code, beside what the caller does until it needs it."""
        if self._engine is None:
            threading.Thread(target=self._load, name="loading machine code").start()

    def _load(self) -> None:
        with contextlib.suppress(Exception):  # whoever calls the loop gets it again
            self.address(next(iter(self._entries)))

    def object_file(self) -> bytes:
        """Read the object file from the cache, or make it."""
        name = f"{self._module.rpartition('.')[2]}.{self._key()}.native"
        found = next(filter(None, (_read(folder / name) for folder in self._folders())), None)
        if found is None:
            found = self._compile()
            any(_write(folder / name, found) for folder in self._folders())
        return found

    def _key(self) -> str:
        """Name everything that the machine code depends on."""
        import llvmlite
        import llvmlite.binding as llvm

        digest = hashlib.sha256()
        # Their source, not their time: an installed package may have any.
        for module in (self._module, __name__):
            digest.update(Path(str(sys.modules[module].__file__)).read_bytes())
        features = llvm.get_host_cpu_features().flatten()
        # A home on a network is shared by machines with other instructions.
        machine = (platform.machine(), llvm.get_host_cpu_name(), features, sys.platform)
        digest.update(repr((llvmlite.__version__, *machine)).encode())
        return digest.hexdigest()[:32]

    def _folders(self) -> Iterator[Path]:
        """Yield the folders that may keep the object file, in the order in which they are tried."""
        asked = Path(os.environ.get("NUMBA_CACHE_DIR", ""))
        if asked.is_absolute():
            yield asked
        yield Path(str(sys.modules[self._module].__file__)).parent / "__pycache__"
        with contextlib.suppress(RuntimeError):  # no home
            yield user_cache()

    def _compile(self) -> bytes:
        """Compile the loops to an object file."""
        import llvmlite.binding as llvm
        from numba import cfunc, njit

        # Copies of the functions whose globals are compiled functions.
        namespace = dict(vars(sys.modules[self._module]))
        for function in self._inner:
            namespace[function.__name__] = njit(nogil=True, error_model="numpy")(
                FunctionType(function.__code__, namespace)
            )
        machine = _target_machine()
        whole = llvm.parse_assembly("")
        for name, entry in self._entries.items():
            body = njit(nogil=True, error_model="numpy")(
                FunctionType(entry.function.__code__, namespace)
            )
            called = cfunc(entry.numba_signature(), error_model="numpy")(entry.with_pointers(body))
            part = llvm.parse_assembly(called.inspect_llvm())
            # numba's mangled name ends in a running number, which is another in each process.
            part.get_function(called.native_name).name = name
            _hide_all_but(part, name)
            _optimize(part, machine)
            whole.link_in(part)
        _check_calls(whole)
        return bytes(machine.emit_object(whole))


class _Entry:
    """A compiled function that is called from Python."""

    def __init__(self, kernels: Kernels, function: FunctionType, signature: str) -> None:
        result, _, parts = signature.rstrip(")").partition("(")
        self._kernels = kernels
        self.function = function
        self._result = result
        self._types = [part.strip() for part in re.split(r",(?![^\[]*\])", parts)]
        self._arrays = [
            (np.dtype(kind.partition("[")[0]), kind.count(":")) if "[" in kind else None
            for kind in self._types
        ]
        self._call: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code.

        Raises:
            TypeError: An array is of another type or rank, or not C-contiguous.
        """
        # At the first call and not when the module is imported, which `--help` would pay for.
        if self._call is None:
            result = None if self._result == "void" else _C_TYPES[self._result]
            prototype = ctypes.CFUNCTYPE(result, *self._c_types())
            self._call = prototype(self._kernels.address(self.__name__))
        flat: list[Any] = []
        for array, value in zip(self._arrays, arguments, strict=True):
            if array is None:
                flat.append(value)
                continue
            if (value.dtype, value.ndim) != array or not value.flags.c_contiguous:
                raise TypeError(
                    f"{self.__name__} takes {array[0]} of {array[1]} dimensions, C-contiguous, "
                    f"not {value.dtype} {value.shape}"
                )
            flat += (value.__array_interface__["data"][0], *value.shape)
        return self._call(*flat)

    def _c_types(self) -> Iterator[Any]:
        for kind in self._types:
            if "[" in kind:
                yield ctypes.c_void_p
                yield from [ctypes.c_int64] * kind.count(":")
            else:
                yield _C_TYPES[kind]

    def numba_signature(self) -> Any:
        """Make numba's signature of the function with pointers."""
        import numba

        types: Any = numba.types
        parts: list[Any] = []
        for kind in self._types:
            scalar = getattr(types, kind.partition("[")[0])
            if "[" in kind:
                parts += [types.CPointer(scalar), *[types.int64] * kind.count(":")]
            else:
                parts.append(scalar)
        return getattr(types, self._result)(*parts)

    def with_pointers(self, body: Any) -> Callable[..., Any]:
        """Make the function that takes a pointer and the lengths for each array."""
        import numba

        names, passed = [], []
        for index, kind in enumerate(self._types):
            names.append(f"a{index}")
            if "[" in kind:
                lengths = [f"a{index}_{axis}" for axis in range(kind.count(":"))]
                names += lengths
                passed.append(f"carray(a{index}, ({', '.join(lengths)},))")
            else:
                passed.append(f"a{index}")
        text = f"def call({', '.join(names)}):\n    return body({', '.join(passed)})\n"
        namespace = {"body": body, "carray": vars(numba)["carray"]}
        # The number of arguments follows from the signature, and numba compiles no *args of
        # pointers. The text has nothing of the caller in it but how many there are.
        exec(text, namespace)
        return cast(Callable[..., Any], namespace["call"])


def _target_machine() -> llvm.TargetMachine:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def _engine(code: bytes) -> llvm.ExecutionEngine:
    """Load an object file into the process."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _hide_all_but(module: llvm.ModuleRef, name: str) -> None:
    """Let an optimizer see that nobody else calls the functions of a module."""
    for value in (*module.functions, *module.global_variables):
        if value.name != name and not value.is_declaration:
            value.linkage = "internal"


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Inline, and remove what is not called: numba's handling of exceptions, as none is raised."""
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _check_calls(module: llvm.ModuleRef) -> None:
    """Refuse code that calls what a later process may not have.

    Raises:
        RuntimeError: A loop allocates an array, or may raise.
    """
    names = (each.name for each in module.functions if each.is_declaration)
    others = [name for name in names if not name.startswith("llvm.") and name not in _LIBRARY]
    if others:
        raise RuntimeError(f"loops call {', '.join(others)}, which needs numba's runtime")


def _read(path: Path) -> bytes | None:
    """Read an object file of the cache; None where there is none, or it is damaged.

    It will be run: whoever may have written it must be one who may change this module, too.
    """
    try:
        with io.FileIO(path, opener=without_links) as file:
            if not _is_trusted(os.fstat(file.fileno())):
                return None
            content = file.read()
    except OSError:
        return None
    # Against damage only (a full disk, a crash): who may write here is known from the file's owner.
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _is_trusted(found: os.stat_result) -> bool:
    """Tell whether nobody but this user, or the owner of this module, may write a file."""
    if os.name == "nt":
        return True
    owners = (os.geteuid(), _owner_of_the_code())
    is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and is_closed and found.st_uid in owners


def _owner_of_the_code() -> int:
    return Path(__file__).stat().st_uid


def _write(path: Path, code: bytes) -> bool:
    """Write an object file to the cache, whole or not at all; False where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing(path) as (file,):
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o644)  # whatever the umask: it is not read otherwise
            file.write(hashlib.sha256(code).digest() + code)
    except OSError:
        return False
    return True
