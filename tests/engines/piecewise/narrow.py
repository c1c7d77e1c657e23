"""Hardware with powers of two whose accumulators are narrow."""

from __future__ import annotations

from pathlib import Path

import intact.targets
from intact.targets import Target, load_target


def narrow_target(folder: Path, bits: int, kind: str = '"wrap"') -> Target:
    """integer-pow2 with another accumulator."""
    source = Path(intact.targets.__file__).parent / "integer-pow2.toml"
    text = source.read_text(encoding="utf-8")
    text = text.replace('kind = "wrap", bits = 32', f"kind = {kind}, bits = {bits}")
    path = folder / "narrow.toml"
    path.write_text(text, encoding="utf-8")
    return load_target(path)
