"""A store in plain memory, written from the rules of IMAP and of delivery, not from the code under test.

Rules it follows: UIDs rise by one and are never used again; every change of a folder takes its next mod-sequence;
flags and keywords belong to the message in its folder; INBOX cannot go; a subscription is only a name; a message
lives as long as a folder shows it, and its parts as long as a message needs them.

Ids and UIDVALIDITY are the store's to choose: the model learns each when it first sees it and holds the store to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.errors import Reason

READ, DELETED, ARCHIVED, SETTABLE = 1, 8, 32, 31
STANDARD = {
    "INBOX": "",
    "Sent": "\\Sent",
    "Drafts": "\\Drafts",
    "Archive": "\\Archive",
    "Trash": "\\Trash",
    "Junk": "\\Junk",
}


class Refused(Exception):  # noqa: N818 - an outcome, not a mistake
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


@dataclass(eq=False)
class Letter:
    """A message. ``counted_on`` are parts the store had when the message was prepared."""

    id: str
    size: int
    thread: str
    header_id: str
    named: dict[str, str]  # address -> to or cc
    parts: frozenset[str]
    counted_on: frozenset[str]
    has_content: bool = True


@dataclass(eq=False)
class Entry:
    letter: Letter
    flags: int
    keywords: dict[str, str]  # folded -> as first written
    modseq: int
    date: int | None  # None: the store's clock decides

    @property
    def shown(self) -> tuple[int, str]:
        return self.flags, " ".join(self.keywords[key] for key in sorted(self.keywords))


@dataclass(eq=False, repr=False)
class Folder:
    owner: Account
    name: str
    special_use: str
    id: int = 0
    uidvalidity: int = 0
    uidnext: int = 1
    modseq: int = 1
    entries: dict[int, Entry] = field(default_factory=dict)
    expunged: list[list[int]] = field(default_factory=list)
    exists: bool = True

    def __repr__(self) -> str:
        return f"<{self.name[:20]!r} of {self.owner.address}>"

    def put(self, letter: Letter, flags: int, keywords: Iterable[str], date: int | None, modseq: int) -> int:
        uid, self.uidnext = self.uidnext, self.uidnext + 1
        flags = flags & SETTABLE | (ARCHIVED if self.special_use == "\\Archive" else 0)
        folded = {keyword.casefold(): keyword for keyword in keywords}
        self.entries[uid] = Entry(letter, flags, folded, modseq, date)
        return uid

    def next_modseq(self) -> int:
        self.modseq += 1
        return self.modseq

    def remove(self, uids: Sequence[int]) -> None:
        if uids:
            self.next_modseq()
            self.expunged.append(list(uids))
            for uid in uids:
                del self.entries[uid]


@dataclass(eq=False)
class Account:
    address: str
    status: str = "active"
    registration: str = ""
    folders: dict[str, Folder] = field(default_factory=dict)
    subscriptions: set[str] = field(default_factory=set)


class Copied(NamedTuple):
    uids: list[tuple[int, int]]
    target: Folder
    modseq: int
    expunged_modseq: int | None


def spelled(name: str) -> str:
    """The spelling of a folder name."""
    levels = name.removesuffix("/").split("/")
    if levels[0].upper() == "INBOX":
        levels[0] = "INBOX"
    if not all(levels):
        raise Refused(Reason.BAD_FOLDER_NAME)
    return "/".join(levels)


def ancestors(name: str) -> list[str]:
    levels = name.split("/")
    return ["/".join(levels[:depth]) for depth in range(1, len(levels))]


class Model:
    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self.letters: dict[str, Letter] = {}
        self.threads: dict[str, str] = {}  # Message-ID -> thread, of all that were ever delivered
        self.recipients: dict[str, dict[str, str]] = {}

    # --- looking ---------------------------------------------------------------------------------------------------

    def current(self, address: str) -> Account | None:
        return next((a for a in self.accounts if a.address == address and a.status in ("active", "inactive")), None)

    def active(self, address: str) -> Account:
        account = self.current(address)
        if account is None:
            raise Refused(Reason.NO_SUCH_ADDRESS)
        if account.status != "active":
            raise Refused(Reason.INACTIVE_ADDRESS)
        return account

    def folder(self, address: str, name: str) -> Folder:
        name = spelled(name)
        folder = self.active(address).folders.get(name)
        if folder is None:
            raise Refused(Reason.NO_SUCH_FOLDER)
        return folder

    def own(self, address: str, folder: Folder) -> Folder:
        """A folder named by its id."""
        if not folder.exists or folder.owner is not self.active(address):
            raise Refused(Reason.NO_SUCH_FOLDER)
        return folder

    def living(self) -> Iterator[Folder]:
        return (folder for account in self.accounts for folder in account.folders.values())

    def parts(self) -> set[str]:
        return {part for letter in self.letters.values() if letter.has_content for part in letter.parts}

    def shown(self) -> set[Letter]:
        return {entry.letter for folder in self.living() for entry in folder.entries.values()}

    def thread_of(self, own_id: str, parents: Sequence[str]) -> str:
        """``parents``: References, oldest first, and last the one replied to."""
        for parent in reversed(parents):
            if parent in self.threads:
                return self.threads[parent]
        return parents[0] if parents else own_id

    # --- accounts --------------------------------------------------------------------------------------------------

    def register(self, address: str, mode: str) -> Account:
        account = self.current(address)
        if account is not None and account.status == "active" and mode == "safe":
            raise Refused(Reason.ADDRESS_EXISTS)
        if account is not None and mode == "stash":
            account.status = "stashed"
            account = None
        if account is None:
            account = Account(address)
            self.accounts.append(account)
        account.status = "active"
        uses = {folder.special_use for folder in account.folders.values()} - {""}
        for name, use in STANDARD.items():
            if name not in account.folders and use not in uses:
                account.folders[name] = Folder(account, name, use)
                account.subscriptions.add(name)
        return account

    def deregister(self, address: str, mode: str) -> None:
        account = self.current(address)
        if account is None or (mode == "deactivate" and account.status != "active"):
            raise Refused(Reason.NO_SUCH_ADDRESS)
        account.status = {"deactivate": "inactive", "stash": "stashed", "purge": "purged"}[mode]
        if mode == "purge":
            had = {entry.letter for folder in account.folders.values() for entry in folder.entries.values()}
            for folder in account.folders.values():
                folder.exists = False
            account.folders.clear()
            account.subscriptions.clear()
            for letter in had - self.shown():
                letter.has_content = False

    # --- delivery --------------------------------------------------------------------------------------------------

    def _check(self, letter: Letter) -> None:
        if not letter.counted_on <= self.parts():
            raise Refused(Reason.UNKNOWN)  # collected since the message was prepared: try again

    def _bring(self, letter: Letter) -> None:
        self.letters[letter.id] = letter
        self.threads.setdefault(letter.header_id, letter.thread)

    def deliver(
        self, letter: Letter, sender: str, to: Sequence[str], filed: dict[str, str], keep_sent: bool
    ) -> tuple[dict[str, tuple[str, int, int] | Reason], tuple[str, int, int] | None]:
        """Return folder, UID and mod-sequence for each recipient, or the refusal; and the sender's copy."""
        outcome: dict[str, tuple[str, int, int] | Reason] = {}
        targets: dict[str, Folder] = {}
        for address in to:
            try:
                target = spelled(filed.get(address, "INBOX"))
                account = self.active(address)
                targets[address] = account.folders.get(target) or account.folders["INBOX"]
            except Refused as refused:
                outcome[address] = refused.reason
        if not targets:
            return outcome, None
        self._check(letter)
        sent = None
        if keep_sent:
            own = self.active(sender).folders
            by_use = [folder for folder in own.values() if folder.special_use == "\\Sent"]
            sent = by_use[0] if by_use else own.get("Sent")
        self._bring(letter)
        self.recipients[letter.id] = {address: letter.named.get(address, "bcc") for address in targets}
        for address, folder in targets.items():
            modseq = folder.next_modseq()
            outcome[address] = (folder.name, folder.put(letter, 0, (), None, modseq), modseq)
        if sent is None:
            return outcome, None
        modseq = sent.next_modseq()
        return outcome, (sent.name, sent.put(letter, READ, (), None, modseq), modseq)

    def append(
        self,
        address: str,
        name: str,
        items: Sequence[tuple[Letter, int, Sequence[str], int | None]],
        replaces: tuple[Folder, Sequence[int]] | None,
    ) -> list[int]:
        folder = self.folder(address, name)
        for letter, *_ in items:
            self._check(letter)
        if replaces is not None:
            self.own(address, replaces[0])
        uids = []
        for letter, flags, keywords, date in items:
            self._bring(letter)
            uids.append(folder.put(letter, flags, keywords, date, folder.next_modseq()))
        if replaces is not None:
            replaces[0].remove([uid for uid in sorted(set(replaces[1])) if uid in replaces[0].entries])
        return uids

    # --- messages --------------------------------------------------------------------------------------------------

    def change_flags(
        self,
        address: str,
        folder: Folder,
        uids: Sequence[int],
        how: str,
        flags: int,
        words: Sequence[str],
        since: int | None,
    ) -> tuple[int, list[tuple[int, int, str]], list[tuple[int, int, str]], list[int]]:
        """The mod-sequence; what changed and what did not, as it is now; what had changed since."""
        self.own(address, folder)
        changed: list[tuple[int, int, str]] = []
        unchanged: list[tuple[int, int, str]] = []
        modified: list[int] = []
        for uid in sorted(set(uids) & folder.entries.keys()):
            entry = folder.entries[uid]
            if since is not None and entry.modseq > since:
                modified.append(uid)
                continue
            before = entry.shown
            given = {word.casefold(): word for word in words}
            if how == "add":
                entry.flags |= flags & SETTABLE
                entry.keywords = given | entry.keywords
            elif how == "remove":
                entry.flags &= ~(flags & SETTABLE)
                entry.keywords = {key: word for key, word in entry.keywords.items() if key not in given}
            else:
                entry.flags = flags & SETTABLE | entry.flags & ARCHIVED
                entry.keywords = given
            (unchanged if entry.shown == before else changed).append((uid, *entry.shown))
        if changed:
            folder.next_modseq()
            for uid, _, _ in changed:
                folder.entries[uid].modseq = folder.modseq
        return folder.modseq, changed, unchanged, modified

    def copy(self, address: str, folder: Folder, uids: Sequence[int], to: str, *, move: bool) -> Copied:
        self.own(address, folder)
        target = self.folder(address, to)
        chosen = sorted(set(uids) & folder.entries.keys())
        if not chosen:
            return Copied([], target, target.modseq, None)
        modseq = target.next_modseq()
        pairs = []
        for uid in chosen:
            entry = folder.entries[uid]
            pairs.append((uid, target.put(entry.letter, entry.flags, entry.keywords.values(), entry.date, modseq)))
            target.entries[pairs[-1][1]].date = entry.date
        if move:
            folder.remove(chosen)
        return Copied(pairs, target, modseq, folder.modseq if move else None)

    def expunge(self, address: str, folder: Folder, uids: Sequence[int] | None) -> list[int]:
        self.own(address, folder)
        gone = [
            uid
            for uid, entry in sorted(folder.entries.items())
            if entry.flags & DELETED and (uids is None or uid in uids)
        ]
        folder.remove(gone)
        return gone

    def collect(self) -> int:
        gone = [x for x in self.letters.values() if x.has_content and x not in self.shown()]
        for letter in gone:
            letter.has_content = False
        return len(gone)

    # --- folders ---------------------------------------------------------------------------------------------------

    def create(self, address: str, name: str, use: str = "") -> None:
        account = self.active(address)
        name = spelled(name)
        taken = use and any(folder.special_use == use for folder in account.folders.values())
        if name in account.folders or taken:
            raise Refused(Reason.FOLDER_EXISTS)
        for ancestor in ancestors(name):
            if ancestor not in account.folders:
                account.folders[ancestor] = Folder(account, ancestor, "")
        account.folders[name] = Folder(account, name, use)

    def rename(self, address: str, old: str, new: str) -> None:
        account = self.active(address)
        old, new = spelled(old), spelled(new)
        tree = [name for name in account.folders if name == old or name.startswith(f"{old}/")]
        if not tree:
            raise Refused(Reason.NO_SUCH_FOLDER)
        if new in account.folders or new == old:
            raise Refused(Reason.FOLDER_EXISTS)
        if old == "INBOX":
            self.create(address, new)
            inbox = account.folders["INBOX"]
            self.copy(address, inbox, list(inbox.entries), new, move=True)
            return
        if new.startswith(f"{old}/"):
            raise Refused(Reason.NOT_ALLOWED)
        moved = {name: new + name[len(old) :] for name in tree}
        if set(moved.values()) & (account.folders.keys() - set(tree)):
            raise Refused(Reason.FOLDER_EXISTS)
        for ancestor in ancestors(new):
            if ancestor not in account.folders:
                account.folders[ancestor] = Folder(account, ancestor, "")
        folders = {target: account.folders.pop(name) for name, target in moved.items()}
        for target, folder in folders.items():
            folder.name = target
        account.folders |= folders

    def delete(self, address: str, name: str) -> None:
        folder = self.folder(address, name)
        if folder.name == "INBOX":
            raise Refused(Reason.NOT_ALLOWED)
        folder.exists = False
        folder.entries.clear()
        del folder.owner.folders[folder.name]

    def subscribe(self, address: str, name: str, on: bool) -> bool:
        subscriptions = self.active(address).subscriptions
        name = spelled(name)
        changes = (name in subscriptions) != on
        (subscriptions.add if on else subscriptions.discard)(name)
        return changes
