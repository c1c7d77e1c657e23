"""Names of a model as C identifiers and in comments; those of a hostile model too."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    text = text if len(text) <= 160 else f"{text[:120]} ... {text[-35:]}"
    return re.sub(r"[^A-Za-z0-9 _./:;,+=()\[\]<>%'-]", "_", text)
