"""float16 for what stays float: how a target's runtime computes it."""

from __future__ import annotations

import enum

import msgspec


class Rounded(enum.StrEnum):
    """What a runtime rounds to float16 where a file says float16."""

    VALUES = "values"
    """Every value that an operator reads or gives: its kernels store float16."""
    WEIGHTS = "weights"
    """Constants alone: it computes with float32."""
    BY_KERNEL = "by_kernel"
    """What each of ONNX Runtime's kernels does: a few compute float16, the others float32."""


class Float16(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that stay float, in float16.

    Attributes:
        source: Where it stands, or was measured, that the runtime does so.
        rounded: What it rounds to float16.
        float32: Operators that stay float32 nevertheless.
        reason: Why they do; shown to users.
        remark: What users should know before they choose it.
        asked: Whether it is asked for; false in targets' files.
    """

    source: str
    rounded: Rounded = Rounded.VALUES
    float32: tuple[str, ...] = ()
    reason: str = ""
    remark: str = ""
    asked: bool = False
