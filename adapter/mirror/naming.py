"""What folders and flags of the other server are called here."""

from __future__ import annotations

from collections.abc import Iterable

from adapter.config.schema import UpstreamSettings
from adapter.store import names
from adapter.store.flags import Flag, valid_keywords
from protocol.errors import MailError

_SYSTEM_FLAGS = {
    "\\seen": Flag.READ,
    "\\answered": Flag.ANSWERED,
    "\\flagged": Flag.STARRED,
    "\\deleted": Flag.DELETED,
    "\\draft": Flag.DRAFT,
}


def readable(levels: Iterable[str]) -> str:
    """A name there as settings and people write it: its levels with ``/`` between them."""
    parts = [level.replace(names.DELIMITER, "_") for level in levels]
    if parts[0].upper() == names.INBOX:
        parts[0] = names.INBOX
    return names.DELIMITER.join(parts)


def is_skipped(name: str, settings: UpstreamSettings) -> bool:
    return any(name == each or name.startswith(each + names.DELIMITER) for each in settings.skip)


def folder_here(name: str, settings: UpstreamSettings) -> str | None:
    """The folder here; None where there can be none of that name."""
    try:
        if name in settings.folders:
            return names.normalise_folder(settings.folders[name])
        if not settings.prefix:
            return names.normalise_folder(name)
        prefix = names.normalise_folder(settings.prefix)
        return prefix if name == names.INBOX else names.normalise_folder(f"{prefix}{names.DELIMITER}{name}")
    except MailError:
        return None


def flags_here(flags: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """System flags as bits, and keywords; what is neither (``\\Recent``) is left out."""
    bits, words = 0, []
    for flag in flags:
        if flag.startswith("\\"):
            bits |= int(_SYSTEM_FLAGS.get(flag.lower(), 0))
        else:
            words.append(flag)
    return bits, valid_keywords(words)
