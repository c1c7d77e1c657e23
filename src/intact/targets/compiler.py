"""The compiler that maps a written file to an accelerator beside a processor."""

from __future__ import annotations

from typing import Literal

import msgspec


class Compiler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What takes a file and leaves to the processor what the accelerator lacks.

    Attributes:
        program: Its name on the command line.
        accelerator: What it compiles for, as it calls it.
        source: Where it stands which operators it maps.
        unmapped: Operators that it leaves to the processor, although they compute with integers.
    """

    program: Literal["vela"]
    accelerator: str
    source: str
    unmapped: tuple[str, ...] = ()
