"""Collects the C kernels that a program uses, completed and in an order that compiles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from intact.formats.c.requantization import REQUANTIZATIONS, Requantization
from intact.graph.names import Names

_WORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline
    int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while _bool _complex _imaginary
    alignas alignof and and_eq asm bitand bitor bool catch class compl const_cast constexpr
    decltype delete dynamic_cast explicit export false friend mutable namespace new noexcept not
    not_eq nullptr operator or or_eq private protected public reinterpret_cast static_assert
    static_cast template this thread_local throw true try typeid typename using virtual wchar_t
    xor xor_eq
    asm fortran near far huge interrupt main linux unix mips sparc sun vax
    arena memory memcpy memset memmove string stdint stddef limits
"""

RESERVED = frozenset(_WORDS.split())
"""Keywords of C and C++ (both read the header), macros of compilers, names that are used here."""

_LONGEST = 40
"""Characters of an identifier's part that comes from the model: C99 tells only 63 apart."""


def identifier(name: str) -> str:
    """Return a C identifier that resembles a name.

    >>> identifier("model/conv_1:0"), identifier("int"), identifier("7*/;"), identifier("")
    ('model_conv_1_0', 'int_', 'x7', 'x')
    """
    text = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST].rstrip("_")
    if not text or text[0].isdigit():
        text = "x" + text
    # POSIX keeps names that end in `_t` for its own types.
    return f"{text}_" if text.lower() in RESERVED or text.endswith("_t") else text


class Identifiers(Names):
    """Unique C identifiers; letters of either case count as one, since macros follow.

    Args:
        taken: Identifiers in use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        super().__init__(taken, key=str.lower)

    def unique(self, name: str, suffix: str = "") -> str:
        """Make an identifier of a name and a suffix.

        >>> made = Identifiers(["input"])
        >>> made.unique("input"), made.unique("input"), made.unique("a b", "_bias")
        ('input_2', 'input_3', 'a_b_bias')
        """
        return self.fresh(identifier(name), suffix)


def comment(text: str) -> str:
    r"""Return text that can stand in a C comment: one line that does not end it.

    Only characters without a meaning there are kept: no ``*`` (ends comments), no backslash and no
    ``?`` (continue lines, the latter in trigraphs), nothing beyond ASCII.

    >>> comment("conv*/ int x; /*"), comment("a\nb\\"), comment("model/conv:0")
    ('conv_/ int x; /_', 'a_b_', 'model/conv:0')
    """
    # Names of a hostile model may be megabytes; both ends are kept, since names of nodes differ
    # there.
    text = text if len(text) <= 160 else f"{text[:120]} ... {text[-35:]}"
    return re.sub(r"[^A-Za-z0-9 _./:;,+=()\[\]<>%'-]", "_", text)


AXES = 6
"""Axes of a grid of rows; the most that a tensor of eight axes can need seldom exceeds three."""

_TOKEN = re.compile(r"@([A-Z_]+)(?:\((.*)\))?@")
_RESCALES = {"RESCALE": "output", "RESCALE_SECOND": "second"}
_CALL = re.compile(r"\b([a-z][a-z0-9_]*)\(")
_HEAD = re.compile(r"^/\* -+ (\w+\.[ch]) -+ \*/\n", re.MULTILINE)
_TYPE = re.compile(r"\b([a-z][a-z0-9_]*)_params\b")


class Library:
    """Collects the kernels that are used.

    A kernel is a section ``NAME.c`` of a file in ``kernels/``; one of several kinds ends its
    functions with ``_@KIND@``, and ``NAME_shift.c`` takes its place where scales are powers of two.
    The structure of its parameters, ``NAME_params``, is in ``NAME.h``. What a kernel calls is found
    in its text.
    """

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._functions: dict[str, str] = {}

    def use(self, name: str, kind: Requantization | None = None) -> str:
        """Return the name of a kernel's function."""
        function = name if kind is None else f"{name}_{kind.name}"
        self._need(function)
        return function

    def use_elementwise(self, element: str) -> str:
        """Return the name of the function that applies ``element``, a kernel, to all elements."""
        function = f"{element}_all"
        if function not in self._functions:
            self._add(function, _source("elementwise.c"), {"NAME": element}, None)
        return function

    def text(self) -> str:
        """Return structures, then functions, each after those that it calls."""
        common = _source("common.c")
        return "\n".join([common, *self._types.values(), *self._functions.values()])

    def _need(self, function: str) -> None:
        if function in self._functions:
            return
        found = _find(function)
        if found is not None:
            stem, kind = found
            self._add(function, _source(f"{stem}.c"), {}, kind)

    def _add(
        self, function: str, source: str, tokens: dict[str, str], kind: Requantization | None
    ) -> None:
        text = _complete(source, tokens, kind)
        for stem in _TYPE.findall(text):
            if stem not in self._types:
                self._types[stem] = _complete(_source(f"{stem}.h"), {}, None)
        # A structure is found in the text by its name, so that no list of them can be wrong.
        self._functions[function] = ""  # in progress: it may name itself
        for called in _CALL.findall(text):
            if called != function:
                self._need(called)
        # Put in again behind what it calls: C wants a function defined before its callers.
        del self._functions[function]
        self._functions[function] = text


@cache
def reserved() -> frozenset[str]:
    """Return all names that kernels can have, and their structures."""
    # All that may be, not what a program uses: names of parameters are given before its kernels are
    # known.
    stems = {*_stems(), *(f"requantize_{name}" for name in REQUANTIZATIONS)}
    functions = stems | {f"{stem}_{name}" for stem in stems for name in REQUANTIZATIONS}
    called = {call for stem in _stems() for call in _CALL.findall(_source(f"{stem}.c"))}
    return frozenset(
        {*functions, *called, *(f"{name}_all" for name in functions)}
        | {f"{stem}_params" for stem in stems}
    )


def _find(function: str) -> tuple[str, Requantization | None] | None:
    """Return the file and kind of a kernel's function; None for functions that are not ours."""
    # The longest first, because a function that ends in ``_shift_even`` ends in ``_even`` too.
    for name in sorted(REQUANTIZATIONS, key=len, reverse=True):
        stem = function.removesuffix(f"_{name}")
        own = f"{stem}_shift"
        if stem != function and REQUANTIZATIONS[name].shifts and own in _stems():
            return own, REQUANTIZATIONS[name]
        if stem != function and stem in _stems():
            return stem, REQUANTIZATIONS[name]
        if function == f"requantize_{name}":
            return function, REQUANTIZATIONS[name]
    return (function, None) if function in _stems() else None


def _complete(source: str, tokens: dict[str, str], kind: Requantization | None) -> str:
    known = {"AXES": str(AXES)} | tokens
    if kind is not None:
        known |= {"KIND": kind.name} | dict(kind.tokens)

    def replaced(match: re.Match[str]) -> str:
        token, argument = match.groups()
        if token in _RESCALES and kind is not None:
            return kind.rescale.format(argument, _RESCALES[token])
        return known[token]

    return _TOKEN.sub(replaced, source)


def _stems() -> frozenset[str]:
    return frozenset(name[:-2] for name in _sections() if name.endswith(".c"))


def _source(name: str) -> str:
    return _sections()[name]


@cache
def _sections() -> Mapping[str, str]:
    """Read the kernels' sources; each section of a file is headed by its name."""
    # Read from the package, which may lie in a zip archive.
    folder = resources.files("intact.formats.c") / "kernels"
    found: dict[str, str] = {}
    for file in folder.iterdir():
        _, *parts = _HEAD.split(file.read_text("utf-8"))
        found |= dict(zip(parts[::2], parts[1::2], strict=True))
    return found
