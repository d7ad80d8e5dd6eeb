"""Applying a plan: every finding in an order that leaves a sound store whenever the process dies.

Content first (restored, moved, quarantined), then accounts, folders, links, messages that only their file tells of, and
last what is lost for good. Every step looks again before it acts and may be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from adapter.maintenance import quarantine
from adapter.maintenance.diff.index import COMPARED
from adapter.maintenance.diff.survey import JOINS, Survey
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.set_aside import SetAside
from adapter.maintenance.expected.tables import NOTES
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import accounts, messages, tree
from adapter.maintenance.repair.folders import Mender
from adapter.maintenance.repair.index_state import State
from adapter.maintenance.repair.links import Placing
from adapter.maintenance.repair.restore import Wanted
from adapter.maintenance.scan import message_check
from adapter.maintenance.scan.message_rows import Descriptions
from adapter.maintenance.scan.rows import cache_batches, parquet_rows
from adapter.store import disk, layout, store_id
from adapter.store.disk import Directories

_ROWS = {kind for kinds in COMPARED.values() for kind in kinds}
_INDEX = {
    *_ROWS, "uidnext-too-low", "counters-stale", "index-missing", "index-unreadable", "index-schema-wrong",
    "index-meta-wrong", "index-foreign", "index-diverged", "index-outdated", "cache-stale",
}  # fmt: skip
_MISPLACED = {"message-misfiled", "blob-misfiled"}
_LEAVING = {"message-duplicate", "message-dropped", "message-stray", "blob-duplicate", "blob-orphan"}
_REGISTRATIONS = {"registration-directory-missing", "registration-directory-orphan", "registration-missing"}
_FOLDERS = {
    "folder-row-without-path", "folder-two-ids", "folder-id-at-two-paths", "folder-identity-damaged",
    "folder-unidentified", "folder-path-without-row", "folder-identity-foreign", "folder-identity-outdated",
    "uidnext-too-low",
}  # fmt: skip
_LINKS = {
    "projection-missing", "projection-wrong-target", "projection-dangling", "projection-orphan",
    "projection-duplicate-uid",
}  # fmt: skip
_LOST = {"message-lost", "message-corrupt"}
_LOST_BLOBS = {"blob-missing", "blob-corrupt"}
LOST = _LOST | _LOST_BLOBS


class Apply:
    def __init__(
        self, directories: Directories, survey: Survey, decisions: dict[str, str], tell: Callable[[Outcome], None]
    ) -> None:
        self._directories = directories
        self._survey = survey
        self._tell = tell
        self._state = State(directories, survey.facts, survey.scratch)
        self._descriptions = Descriptions(survey.scratch)
        self._set_aside = SetAside(survey.scratch)
        self._mender = Mender(self._state, decisions, self._descriptions, self._set_aside)
        self._wanted = Wanted(directories, survey.scratch)
        self._adopted: set[str] = set()  # damaged messages that nothing but their files told of

    def run(self) -> None:
        try:
            self._read_notes()
            self._modes()
            self._identity()
            self._strays(in_content=False)
            self._content()
            self._index()
            self._accounts()
            for finding in self._from_disk(_FOLDERS):
                self._tell(self._mender.folder(finding))
            for finding in self._survey.findings({"folder-name-wrong"}):
                self._tell(tree.full_name(self._mender, finding))
            self._mender.raise_uids()
            self._links()
            self._adopt()
            self._losses()
            self._returned()
            self._state.finish()
            self._rest()
            self._strays(in_content=True)
            for finding in self._survey.findings({"unreadable"}):
                self._tell(Outcome.expected(finding))
        finally:
            self._descriptions.close()
            self._set_aside.close()
            self._wanted.close()
            self._state.close()

    def _from_disk(self, kinds: set[str]) -> Iterator[Finding]:
        """Kinds that a missing row of the index gives as well: those are done with the index."""
        return (finding for finding in self._survey.findings(kinds) if finding.mailbox)

    def _read_notes(self) -> None:
        with contextlib.closing(tables.connect(f"{self._survey.scratch}/{NOTES}")) as notes:
            self._mender.removed_folders = {row[0] for row in notes.execute("SELECT folder_id FROM removed_folders")}

    # --- the tree ---------------------------------------------------------------------------------------------------

    def _modes(self) -> None:
        """First of all: until then others may read the credentials, or write where repair reads."""
        for finding in self._survey.findings({"credentials-exposed", "mode-too-wide"}):
            self._tell(tree.close(self._directories, finding))
        for finding in self._survey.findings({"owner-foreign"}):
            self._tell(tree.foreign_owner(self._directories, finding))
        for finding in self._survey.findings({"text-index-damaged"}):
            self._tell(tree.text_index(self._directories, finding))

    def _strays(self, *, in_content: bool) -> None:
        """Quarantine strays: they may block directories. A stray directory of content waits until its messages left."""
        content = {*layout.MESSAGES, *layout.ATTACHMENTS}
        for finding in self._survey.findings({"stray-entry"}):
            if (finding.place in content) is in_content:
                self._tell(tree.stray(self._directories, finding))

    # --- identity --------------------------------------------------------------------------------------------------

    def _identity(self) -> None:
        """The store gets its id back, and what belongs to another leaves before anything is built from it."""
        for finding in self._survey.findings({"store-id-damaged"}):
            quarantine.move(self._directories, (), layout.STORE_ID_FILE, finding.detail)
            store_id.write(self._directories, self._survey.store)
            self._tell(Outcome.expected(finding))
        for kind, where in (("journal-foreign", layout.JOURNAL), ("snapshot-foreign", layout.SNAPSHOTS)):
            for finding in self._survey.findings({kind}):
                moved = quarantine.move(self._directories, where, finding.subject, finding.detail)
                self._tell(_moved(finding, moved))

    # --- the index -------------------------------------------------------------------------------------------------

    def _index(self) -> None:
        """What the journal tells is put in place at once; else the private tables are filled until they are sealed."""
        survey = self._survey
        wrong = any(survey.found[kind] for kind in _INDEX)
        if wrong or not survey.facts.complete:
            self._fill_cache()
        if survey.facts.complete:
            self._state.open_journal(replace=wrong)
        for finding in survey.findings(_INDEX):
            if not finding.mailbox and not finding.place:
                self._tell(Outcome.expected(finding))

    def _fill_cache(self) -> None:
        """Rows of ``cache_messages`` for every message whose file is good, from the same scan."""
        connection = self._state.connection
        for rows in chain.from_iterable(map(cache_batches, self._survey.cache_places)):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT OR IGNORE INTO cache_messages SELECT ?1, ?3, ?4, ?5, ?6, ?7"
                " WHERE EXISTS (SELECT 1 FROM messages WHERE message_id = ?1 AND file_sha256 = ?2)",
                rows,
            )
            connection.execute("COMMIT")

    # --- content ---------------------------------------------------------------------------------------------------

    def _content(self) -> None:
        survey = self._survey
        self._leave(_LEAVING)
        for finding in survey.findings(_MISPLACED):
            self._tell(self._file(finding))
        for finding in survey.findings(LOST):
            self._wanted.add(finding.id)
        self._wanted.restore()
        for finding in survey.findings(LOST):
            restored = not self._wanted.has(finding.id)
            if finding.name and not self._is_at_its_place(finding, restored=restored):
                why = finding.detail or "does not match its checksum"
                quarantine.move(self._directories, quarantine.parts(finding.place), finding.name, why)
            if restored:
                self._tell(Outcome(finding, "repaired", "restored from the journal"))
        self._leave({"staging-leftover"})  # now that nothing in it is wanted any more

    def _is_at_its_place(self, finding: Finding, *, restored: bool) -> bool:
        """Whether the damaged file may stay: a message that nothing restores stays readable where its links point to.

        What was restored has taken the place of the damaged file already.
        """
        if restored:
            return finding.place == layout.absolute(*self._home(finding))
        if finding.kind != "message-corrupt" or not self._is_readable(finding):
            return False
        if not finding.uid:  # in another directory
            self._file(finding)
        return True

    def _is_readable(self, finding: Finding) -> bool:
        """Whether there is a file, and not a directory or a pipe, and not one that is another message."""
        try:
            with self._directories.open(quarantine.parts(finding.place)) as directory:
                return not message_check.is_foreign(disk.read_file(directory, finding.name), finding.id)
        except OSError as error:
            return disk.is_unreadable(error)

    def _home(self, finding: Finding) -> layout.Parts:
        message = finding.kind.startswith("message")
        return layout.message_directory(finding.id) if message else layout.blob_directory(finding.id)

    def _leave(self, kinds: set[str]) -> None:
        for finding in self._survey.findings(kinds):
            why = finding.detail or finding.kind
            where = quarantine.move(self._directories, quarantine.parts(finding.place), finding.name, why)
            self._tell(_moved(finding, where))

    def _file(self, finding: Finding) -> Outcome:
        where = self._home(finding)
        with (
            self._directories.open(quarantine.parts(finding.place)) as source,
            self._directories.open(where, create=True) as target,
        ):
            if disk.exists(source, finding.name) and not disk.exists(target, finding.name):
                disk.rename(source, finding.name, target, finding.name)
        return Outcome(finding, "repaired", f"moved to {layout.absolute(*where)}")

    def _losses(self) -> None:
        """What the journal could not restore. A message stays where it is with placeholders, if any of it is left."""
        for finding in self._survey.findings(_LOST):
            if self._wanted.has(finding.id) and finding.id not in self._adopted:
                if not self._knows(finding.id):
                    self._tell(Outcome(finding, "loss", "in quarantine; nothing else tells of it"))
                elif finding.kind == "message-corrupt" and (sha256 := self._file_digest(finding.id)):
                    self._tell(messages.mark(self._mender, finding, sha256))
                else:
                    self._tell(messages.lose(self._mender, finding, "its content is lost"))
        for finding in self._survey.findings(_LOST_BLOBS):
            if self._wanted.has(finding.id):
                self._tell(messages.mark_blob(self._mender, finding))

    def _file_digest(self, message_id: str) -> str:
        """SHA-256 of a canonical file as it is now; empty if there is none."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._directories.open(layout.message_directory(message_id)) as directory,
        ):
            return message_check.hash_file(directory, layout.message_name(message_id))
        return ""

    def _returned(self) -> None:
        """Parts and messages that are there again after their loss was recorded."""
        parts: dict[str, list[Finding]] = {}
        for finding in self._survey.findings({"part-returned"}):
            parts.setdefault(finding.id, []).append(finding)
        for findings in parts.values():
            done = messages.heal(self._mender, findings[0].id, [each.name for each in findings])
            for finding in findings:
                self._tell(Outcome(finding, "repaired", done))
        for finding in self._survey.findings({"message-returned"}):
            if not finding.uid:
                self._file(finding)
            self._tell(messages.restore_lost(self._mender, finding, self._file_digest(finding.id)))

    def _knows(self, message_id: str) -> bool:
        row = self._state.connection.execute(
            "SELECT 1 FROM messages WHERE message_id = ? AND file_sha256 <> ''", (message_id,)
        ).fetchone()
        return row is not None

    # --- accounts, messages ----------------------------------------------------------------------------------------

    def _accounts(self) -> None:
        for finding in self._from_disk(_REGISTRATIONS):
            self._tell(accounts.directory(self._mender, finding))
        for finding in self._survey.findings({"credentials-orphan"}):
            self._tell(accounts.credentials(self._mender, finding))
        known = self._state.connection.execute("SELECT 1 FROM mailbox_registrations LIMIT 1").fetchone()
        self._mender.found_accounts = known is not None

    def _links(self) -> None:
        placing = Placing(self._mender)
        for finding in self._survey.findings(_LINKS):
            self._tell(messages.link(self._mender, placing, finding))
            if placing.is_full:
                placing.flush()
        placing.flush()

    def _adopt(self) -> None:
        if not any(finding.place for finding in self._survey.findings({"message-not-indexed", "message-corrupt"})):
            return
        placing = Placing(self._mender)
        for row in self._homes():
            finding = Finding(row["kind"], row["id"], place=row["place"], name=row["name"], id=row["id"])
            if finding.kind == "message-corrupt":
                if not self._wanted.has(finding.id) or self._knows(finding.id) or not self._file_digest(finding.id):
                    continue
                self._adopted.add(finding.id)
            elif not row["proper"]:
                self._file(finding)
            self._tell(messages.adopt(self._mender, placing, finding, row["homes"] or [], row["meta"]))
            if placing.is_full:
                placing.flush()
        placing.flush()
        self._fill_adopted()

    def _homes(self) -> Iterator[dict[str, Any]]:
        """Messages that only their file tells of, oldest first, with the links that show them."""
        survey = self._survey
        session = survey.session
        target = f"{survey.scratch}/homes"
        session.read.parquet(f"{survey.scratch}/{JOINS}").createOrReplaceTempView("found_rows")
        session.sql("""
            SELECT n.kind, f.id, f.place, f.name, max(f.proper) AS proper, max(f.meta) AS meta,
              sort_array(collect_list(if(l.id IS NULL, NULL, named_struct(
                'mailbox', l.mailbox, 'entry', l.entry, 'uid', l.uid)))) AS homes
            FROM file_rows f
            JOIN found_rows n ON n.kind IN ('message-not-indexed', 'message-corrupt') AND n.id = f.id
              AND n.place = f.place
            LEFT JOIN file_rows l ON l.part = 'link' AND l.id = f.id AND l.proper
            WHERE f.part = 'message'
            GROUP BY n.kind, f.id, f.place, f.name ORDER BY f.id
        """).write.parquet(target)
        return parquet_rows(target, ["kind", "id", "place", "name", "proper", "meta", "homes"])

    def _fill_adopted(self) -> None:
        """The cache of the messages adopted; the index may be in use by nobody but us."""
        if not self._survey.facts.complete:
            self._fill_cache()

    def _rest(self) -> None:
        """Journal segments and snapshots that do not verify leave once everything is sealed without them."""
        for finding in self._survey.findings({"journal-damaged", "journal-torn", "snapshot-damaged"}):
            if finding.kind == "snapshot-damaged":
                where = quarantine.move(self._directories, layout.SNAPSHOTS, finding.subject, "does not verify")
                self._tell(_moved(finding, where))
            elif finding.subject != "records" and (
                finding.kind == "journal-damaged" or not self._survey.facts.complete
            ):
                where = quarantine.move(self._directories, layout.JOURNAL, finding.subject, "does not verify")
                self._tell(_moved(finding, where))
            else:
                self._tell(Outcome.expected(finding))


def _moved(finding: Finding, where: str) -> Outcome:
    done = Outcome.expected(finding)
    done.done = f"moved to {where}" if where else "gone already"
    return done
