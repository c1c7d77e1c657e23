"""``python -m intact`` is the command line."""

from __future__ import annotations

from intact.cli import main

if __name__ == "__main__":
    main()
