"""Map upstream folder names and flags to those of the store."""

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


def folder_name(levels: Iterable[str]) -> str:
    """Join the levels of an upstream mailbox with ``/``, as settings and people write its name."""
    parts = [level.replace(names.DELIMITER, "_") for level in levels]
    if parts[0].upper() == names.INBOX:
        parts[0] = names.INBOX
    return names.DELIMITER.join(parts)


def is_skipped(name: str, settings: UpstreamSettings) -> bool:
    return any(name == each or name.startswith(each + names.DELIMITER) for each in settings.skip)


def target_folder(name: str, settings: UpstreamSettings) -> str | None:
    """Return the folder of the store; None if its name would be invalid."""
    try:
        if name in settings.folders:
            return names.normalise_folder(settings.folders[name])
        if not settings.prefix:
            return names.normalise_folder(name)
        prefix = names.normalise_folder(settings.prefix)
        return prefix if name == names.INBOX else names.normalise_folder(f"{prefix}{names.DELIMITER}{name}")
    except MailError:
        return None


def convert_flags(flags: Iterable[str]) -> tuple[int, tuple[str, ...]]:
    """Convert flags to bits and keywords, without ``\\Recent`` and unknown system flags."""
    bits, words = 0, []
    for flag in flags:
        if flag.startswith("\\"):
            bits |= int(_SYSTEM_FLAGS.get(flag.lower(), 0))
        else:
            words.append(flag)
    return bits, valid_keywords(words)
