"""Unplanned damage: random files are removed, truncated, overwritten or made unreadable.

Other kinds of damage join the draw with :func:`rough`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from adapter.store import layout
from tests.system.maintenance.lab import failing

Rough = Callable[[Path, random.Random], None]
#: Every kind of rough damage by name. One that finds nothing to damage does nothing.
ROUGH: dict[str, Rough] = {}
_CONTENT = (layout.MESSAGES, layout.ATTACHMENTS)


def rough(damage: Rough) -> Rough:
    ROUGH[damage.__name__] = damage
    return damage


def _content(root: Path, chance: random.Random) -> list[Path]:
    """Up to three files of messages and parts."""
    paths = sorted(path for top in _CONTENT for path in Path(root, *top).rglob("*") if path.is_file())
    return chance.sample(paths, min(len(paths), chance.randint(1, 3)))


@rough
def content_removed(root: Path, chance: random.Random) -> None:
    for path in _content(root, chance):
        path.unlink()


@rough
def content_cut(root: Path, chance: random.Random) -> None:
    for path in _content(root, chance):
        raw = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(raw[: chance.randrange(len(raw) + 1)])


@rough
def content_edited(root: Path, chance: random.Random) -> None:
    for path in _content(root, chance):
        raw = bytearray(path.read_bytes())
        if raw:
            at = chance.randrange(len(raw))
            raw[at : at + chance.randint(1, 40)] = b"edited by hand"
        path.chmod(0o644)
        path.write_bytes(raw)


@rough
def content_moved_away(root: Path, chance: random.Random) -> None:
    for path in _content(root, chance):
        other = path.parent.parent / ("2001-01-01" if path.suffix == ".md" else "00")
        other.mkdir(exist_ok=True)
        path.rename(other / path.name)


@rough
def content_unreadable(root: Path, chance: random.Random) -> None:
    for path in _content(root, chance):
        failing.fail(path, chance.choice(failing.ERRORS))


@rough
def links_removed(root: Path, chance: random.Random) -> None:
    links = sorted(path for path in Path(root, *layout.MAILBOXES).rglob("*.md") if path.is_symlink())
    for path in chance.sample(links, len(links) // 2):
        path.unlink()


@rough
def identities_damaged(root: Path, chance: random.Random) -> None:
    identities = sorted(Path(root, *layout.MAILBOXES).rglob(layout.IDENTITY_FILE))
    for path in chance.sample(identities, min(len(identities), 2)):
        path.unlink()
        path.write_bytes(b"?")


@rough
def index_removed(root: Path, chance: random.Random) -> None:
    Path(root, layout.INDEX_FILE).unlink(missing_ok=True)


@rough
def index_overwritten(root: Path, chance: random.Random) -> None:
    path = Path(root, layout.INDEX_FILE)
    if path.exists():
        raw = bytearray(path.read_bytes())
        at = chance.randrange(0, len(raw), 4096)
        raw[at : at + 4096] = chance.randbytes(4096)
        path.write_bytes(raw)


@rough
def journal_removed(root: Path, chance: random.Random) -> None:
    """Without the index, the flags are lost as well; see ``Inventory``."""
    for path in Path(root, *layout.JOURNAL).glob("*.jsonl"):
        path.unlink()
