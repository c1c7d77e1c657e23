"""What pages of the documentation need beside the folder that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ELSEWHERE: Mapping[str, str] = {
    "training.md": "tests/examples/test_training_document.py",
    "from-mqbench.md": "tests/examples/test_training_document.py",
}
"""Pages that need torch, which is not loaded beside all other runtimes, and the test that runs them."""

PREPARED: Mapping[str, Callable[[], dict[str, Any] | None]] = {}
"""Functions that write further files into the working directory, and give names to the snippets."""
