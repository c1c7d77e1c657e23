"""Hardware with powers of two whose accumulators are narrow."""

from __future__ import annotations

from pathlib import Path

import intact.targets
from intact.targets import Target, load_target


def narrow_target(folder: Path, bits: int, overflow: str = '"wrap"') -> Target:
    """integer-pow2 with another accumulator."""
    source = Path(intact.targets.__file__).parent / "integer-pow2.toml"
    text = source.read_text(encoding="utf-8")
    text = text.replace("accumulator_bits = 32", f"accumulator_bits = {bits}")
    text = text.replace('accumulator_overflow = "wrap"', f"accumulator_overflow = {overflow}")
    path = folder / "narrow.toml"
    path.write_text(text, encoding="utf-8")
    return load_target(path)
