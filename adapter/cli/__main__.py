"""``python -m adapter.cli`` is ``markpost``."""

from __future__ import annotations

from adapter.cli import main

if __name__ == "__main__":
    main(prog_name="markpost")
