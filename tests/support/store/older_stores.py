"""Stores as programs before this one left them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path


def forget_table(root: Path, snapshot: int, table: str) -> None:
    """Neither the index nor this snapshot know of a table that came later."""
    with closing(sqlite3.connect(root / "index.sqlite")) as index:
        index.execute(f"DROP TABLE {table}")
    place = root / "snapshots" / f"{snapshot:016d}"
    (place / f"{table}.parquet").unlink()
    manifest = json.loads((place / "manifest.json").read_text())
    del manifest["sha256"][f"{table}.parquet"], manifest["digest"]
    (place / "manifest.json").unlink()
    (place / "manifest.json").write_text(json.dumps(manifest))
