"""All layers of a store against each other: files, links, index, journal, snapshots."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.store.checker import Checker


def disagreements(root: str | os.PathLike[str], scratch: str | os.PathLike[str], *, open_stores: int = 0) -> list[str]:
    """Return the problems of an idle store; ``open_stores`` of it may be open."""
    Path(scratch).mkdir(parents=True, exist_ok=True)
    problems = Checker(os.fspath(scratch)).problems(os.fspath(root), sessions=open_stores)
    with closing(sqlite3.connect(f"file:{root}/index.sqlite?mode=ro", uri=True)) as index:
        for folder, uidnext, uids in index.execute(
            "SELECT f.folder_id, f.uidnext, e.uids FROM folders f JOIN expunged e USING (folder_id)"
        ):
            if max(int(uid) for part in uids.split(",") for uid in part.split(":")) >= uidnext:
                problems.append(f"folder {folder}: UIDs {uids} were used and would be used again from {uidnext} on")
        twice = index.execute(
            "SELECT registration_id, special_use FROM folders WHERE special_use <> '' GROUP BY 1, 2 HAVING count(*) > 1"
        ).fetchall()
        problems += [f"two folders of one special use: {row}" for row in twice]
    return problems


def assert_layers_agree(root: str | os.PathLike[str], scratch: str | os.PathLike[str], *, open_stores: int = 0) -> None:
    problems = disagreements(root, scratch, open_stores=open_stores)
    assert not problems, "\n".join(problems)
