"""Apply repairs: each finding in an order that leaves a consistent store if the process crashes at any point.

Content first (restored, moved, quarantined), then accounts, folders, links, messages known only from their file, and
finally losses. Every step checks the current state before it acts, and is idempotent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from adapter.maintenance.diff.inspection import JOINED_FINDINGS, Inspection
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.normalise import SetAsideRows
from adapter.maintenance.expected.tables import NOTES
from adapter.maintenance.findings import Finding, Outcome
from adapter.maintenance.repair import accounts, messages, tree
from adapter.maintenance.repair.folders import FolderRepair
from adapter.maintenance.repair.links import LinkPlacement
from adapter.maintenance.repair.message_rows import MessageDescriptions
from adapter.maintenance.repair.restore import MissingContent
from adapter.maintenance.repair.target import RepairTarget
from adapter.maintenance.scan import message_check
from adapter.maintenance.scan.index_compare import COMPARED
from adapter.maintenance.scan.rows import cache_batches, parquet_rows
from adapter.store import disk, layout, quarantine, store_id
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
    """The repair of all findings of one inspection."""

    def __init__(
        self,
        directories: Directories,
        inspection: Inspection,
        decisions: dict[str, str],
        add_outcome: Callable[[Outcome], None],
    ) -> None:
        self._directories = directories
        self._inspection = inspection
        self._add_outcome = add_outcome
        self._target = RepairTarget(directories, inspection.facts, inspection.scratch)
        self._descriptions = MessageDescriptions(inspection.scratch)
        self._set_aside = SetAsideRows(inspection.scratch)
        self._folder_repair = FolderRepair(self._target, decisions, self._descriptions, self._set_aside)
        self._missing_content = MissingContent(directories, inspection.scratch)
        self._adopted: set[str] = set()  # damaged messages that were known only from their files

    def run(self) -> None:
        try:
            self._read_removed_folders()
            self._repair_modes()
            self._repair_identity()
            self._quarantine_strays(in_content=False)
            self._repair_content()
            self._repair_index()
            self._repair_accounts()
            for finding in self._disk_findings(_FOLDERS):
                self._add_outcome(self._folder_repair.folder(finding))
            for finding in self._inspection.findings({"folder-name-wrong"}):
                self._add_outcome(tree.full_name(self._folder_repair, finding))
            self._folder_repair.raise_uids()
            self._repair_links()
            self._adopt_messages()
            self._record_losses()
            self._restore_returned()
            self._target.finish()
            self._quarantine_history()
            self._quarantine_strays(in_content=True)
            for finding in self._inspection.findings({"unreadable"}):
                self._add_outcome(Outcome.expected(finding))
        finally:
            self._descriptions.close()
            self._set_aside.close()
            self._missing_content.close()
            self._target.close()

    def _disk_findings(self, kinds: set[str]) -> Iterator[Finding]:
        """The findings about files. Those of the same kind about rows are repaired with the index."""
        return (finding for finding in self._inspection.findings(kinds) if finding.mailbox)

    def _read_removed_folders(self) -> None:
        with contextlib.closing(tables.connect(f"{self._inspection.scratch}/{NOTES}")) as notes:
            self._folder_repair.removed_folders = {
                row[0] for row in notes.execute("SELECT folder_id FROM removed_folders")
            }

    # --- the tree ---------------------------------------------------------------------------------------------------

    def _repair_modes(self) -> None:
        """Repair modes first: until then other users can read the credentials, or write to files that repair reads."""
        for finding in self._inspection.findings({"credentials-exposed", "mode-too-wide"}):
            self._add_outcome(tree.close(self._directories, finding))
        for finding in self._inspection.findings({"owner-foreign"}):
            self._add_outcome(tree.foreign_owner(self._directories, finding))
        for finding in self._inspection.findings({"text-index-damaged"}):
            self._add_outcome(tree.text_index(self._directories, finding))

    def _quarantine_strays(self, *, in_content: bool) -> None:
        """Quarantine stray entries, which may block directories; a stray content directory after its messages."""
        content = {*layout.MESSAGES, *layout.ATTACHMENTS}
        for finding in self._inspection.findings({"stray-entry"}):
            if (finding.place in content) is in_content:
                self._add_outcome(tree.stray(self._directories, finding))

    # --- identity --------------------------------------------------------------------------------------------------

    def _repair_identity(self) -> None:
        """Restore the store id, and quarantine files of other stores before they are used as a source."""
        for finding in self._inspection.findings({"store-id-damaged"}):
            quarantine.move(self._directories, (), layout.STORE_ID_FILE, finding.detail)
            store_id.write(self._directories, self._inspection.store)
            self._add_outcome(Outcome.expected(finding))
        for kind, where in (("journal-foreign", layout.JOURNAL), ("snapshot-foreign", layout.SNAPSHOTS)):
            for finding in self._inspection.findings({kind}):
                moved = quarantine.move(self._directories, where, finding.subject, finding.detail)
                self._add_outcome(_moved(finding, moved))

    # --- the index -------------------------------------------------------------------------------------------------

    def _repair_index(self) -> None:
        """Install the expected tables if the journal is complete; else keep them private until they are sealed."""
        inspection = self._inspection
        is_wrong = any(inspection.kinds[kind] for kind in _INDEX)
        if is_wrong or not inspection.facts.complete:
            self._fill_cache()
        if inspection.facts.complete:
            self._target.open_journal(replace=is_wrong)
        for finding in inspection.findings(_INDEX):
            if not finding.mailbox and not finding.place:
                self._add_outcome(Outcome.expected(finding))

    def _fill_cache(self) -> None:
        """Insert the scanned rows of ``cache_messages`` for all messages with an intact file."""
        connection = self._target.connection
        for rows in chain.from_iterable(map(cache_batches, self._inspection.cache_directories)):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT OR IGNORE INTO cache_messages SELECT ?1, ?3, ?4, ?5, ?6, ?7"
                " WHERE EXISTS (SELECT 1 FROM messages WHERE message_id = ?1 AND file_sha256 = ?2)",
                rows,
            )
            connection.execute("COMMIT")

    # --- content ---------------------------------------------------------------------------------------------------

    def _repair_content(self) -> None:
        inspection = self._inspection
        self._quarantine(_LEAVING)
        for finding in inspection.findings(_MISPLACED):
            self._add_outcome(self._move_to_its_directory(finding))
        for finding in inspection.findings(LOST):
            self._missing_content.add(finding.id)
        self._missing_content.restore()
        for finding in inspection.findings(LOST):
            restored = not self._missing_content.contains(finding.id)
            if finding.name and not self._may_stay(finding, restored=restored):
                why = finding.detail or "does not match its checksum"
                quarantine.move(self._directories, quarantine.parts(finding.place), finding.name, why)
            if restored:
                self._add_outcome(Outcome(finding, "repaired", "restored from the journal"))
        self._quarantine({"staging-leftover"})  # after restoring: staging may contain missing content

    def _may_stay(self, finding: Finding, *, restored: bool) -> bool:
        """True if the damaged file may stay: an unrecoverable message stays readable at the target of its links.

        Restored content has already replaced the damaged file.
        """
        if restored:
            return finding.place == layout.absolute(*self._directory_of(finding))
        if finding.kind != "message-corrupt" or not self._is_readable(finding):
            return False
        if not finding.uid:  # in another directory
            self._move_to_its_directory(finding)
        return True

    def _is_readable(self, finding: Finding) -> bool:
        """True for a regular file that does not name another message."""
        try:
            with self._directories.open(quarantine.parts(finding.place)) as directory:
                return not message_check.has_other_id(disk.read_file(directory, finding.name), finding.id)
        except OSError as error:
            return disk.is_unreadable(error)

    def _directory_of(self, finding: Finding) -> layout.Parts:
        message = finding.kind.startswith("message")
        return layout.message_directory(finding.id) if message else layout.blob_directory(finding.id)

    def _quarantine(self, kinds: set[str]) -> None:
        for finding in self._inspection.findings(kinds):
            why = finding.detail or finding.kind
            where = quarantine.move(self._directories, quarantine.parts(finding.place), finding.name, why)
            self._add_outcome(_moved(finding, where))

    def _move_to_its_directory(self, finding: Finding) -> Outcome:
        where = self._directory_of(finding)
        with (
            self._directories.open(quarantine.parts(finding.place)) as source,
            self._directories.open(where, create=True) as target,
        ):
            if disk.exists(source, finding.name) and not disk.exists(target, finding.name):
                disk.rename(source, finding.name, target, finding.name)
        return Outcome(finding, "repaired", f"moved to {layout.absolute(*where)}")

    def _record_losses(self) -> None:
        """Record unrecoverable content. A message with some content left stays in its folders with placeholders."""
        for finding in self._inspection.findings(_LOST):
            if self._missing_content.contains(finding.id) and finding.id not in self._adopted:
                if not self._is_indexed(finding.id):
                    self._add_outcome(Outcome(finding, "loss", "in quarantine; no other source contains it"))
                elif finding.kind == "message-corrupt" and (sha256 := self._file_digest(finding.id)):
                    self._add_outcome(messages.mark(self._folder_repair, finding, sha256))
                else:
                    self._add_outcome(messages.lose(self._folder_repair, finding, "its content is lost"))
        for finding in self._inspection.findings(_LOST_BLOBS):
            if self._missing_content.contains(finding.id):
                self._add_outcome(messages.mark_blob(self._folder_repair, finding))

    def _file_digest(self, message_id: str) -> str:
        """SHA-256 of the current canonical file; "" if there is no file."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._directories.open(layout.message_directory(message_id)) as directory,
        ):
            return message_check.hash_file(directory, layout.message_name(message_id))
        return ""

    def _restore_returned(self) -> None:
        """Restore parts and messages that returned after their loss was recorded."""
        parts: dict[str, list[Finding]] = {}
        for finding in self._inspection.findings({"part-returned"}):
            parts.setdefault(finding.id, []).append(finding)
        for findings in parts.values():
            done = messages.heal(self._folder_repair, findings[0].id, [each.name for each in findings])
            for finding in findings:
                self._add_outcome(Outcome(finding, "repaired", done))
        for finding in self._inspection.findings({"message-returned"}):
            if not finding.uid:
                self._move_to_its_directory(finding)
            self._add_outcome(messages.restore_lost(self._folder_repair, finding, self._file_digest(finding.id)))

    def _is_indexed(self, message_id: str) -> bool:
        row = self._target.connection.execute(
            "SELECT 1 FROM messages WHERE message_id = ? AND file_sha256 <> ''", (message_id,)
        ).fetchone()
        return row is not None

    # --- accounts, messages ----------------------------------------------------------------------------------------

    def _repair_accounts(self) -> None:
        for finding in self._disk_findings(_REGISTRATIONS):
            self._add_outcome(accounts.directory(self._folder_repair, finding))
        for finding in self._inspection.findings({"credentials-orphan"}):
            self._add_outcome(accounts.credentials(self._folder_repair, finding))
        account = self._target.connection.execute("SELECT 1 FROM mailbox_registrations LIMIT 1").fetchone()
        self._folder_repair.has_accounts = account is not None

    def _repair_links(self) -> None:
        placement = LinkPlacement(self._folder_repair)
        for finding in self._inspection.findings(_LINKS):
            self._add_outcome(messages.link(self._folder_repair, placement, finding))
            if placement.is_full:
                placement.flush()
        placement.flush()

    def _adopt_messages(self) -> None:
        """Index the messages that are known only from their canonical files."""
        if not any(finding.place for finding in self._inspection.findings({"message-not-indexed", "message-corrupt"})):
            return
        placement = LinkPlacement(self._folder_repair)
        for row in self._messages_with_links():
            finding = Finding(row["kind"], row["id"], place=row["place"], name=row["name"], id=row["id"])
            if finding.kind == "message-corrupt":
                if (
                    not self._missing_content.contains(finding.id)
                    or self._is_indexed(finding.id)
                    or not self._file_digest(finding.id)
                ):
                    continue
                self._adopted.add(finding.id)
            elif not row["proper"]:
                self._move_to_its_directory(finding)
            self._add_outcome(messages.adopt(self._folder_repair, placement, finding, row["homes"] or [], row["meta"]))
            if placement.is_full:
                placement.flush()
        placement.flush()
        if not self._inspection.facts.complete:  # else servers fill the cache
            self._fill_cache()

    def _messages_with_links(self) -> Iterator[dict[str, Any]]:
        """Messages known only from their files, oldest first, with the links that show them."""
        inspection = self._inspection
        session = inspection.session
        target = f"{inspection.scratch}/homes"
        session.read.parquet(f"{inspection.scratch}/{JOINED_FINDINGS}").createOrReplaceTempView("joined_findings")
        session.sql("""
            SELECT n.kind, f.id, f.place, f.name, max(f.proper) AS proper, max(f.meta) AS meta,
              sort_array(collect_list(if(l.id IS NULL, NULL, named_struct(
                'mailbox', l.mailbox, 'entry', l.entry, 'uid', l.uid)))) AS homes
            FROM file_rows f
            JOIN joined_findings n ON n.kind IN ('message-not-indexed', 'message-corrupt') AND n.id = f.id
              AND n.place = f.place
            LEFT JOIN file_rows l ON l.part = 'link' AND l.id = f.id AND l.proper
            WHERE f.part = 'message'
            GROUP BY n.kind, f.id, f.place, f.name ORDER BY f.id
        """).write.parquet(target)
        return parquet_rows(target, ["kind", "id", "place", "name", "proper", "meta", "homes"])

    def _quarantine_history(self) -> None:
        """Quarantine damaged journal segments and snapshots, after the repaired tables are sealed without them."""
        for finding in self._inspection.findings({"journal-damaged", "journal-torn", "snapshot-damaged"}):
            if finding.kind == "snapshot-damaged":
                where = quarantine.move(self._directories, layout.SNAPSHOTS, finding.subject, "does not verify")
                self._add_outcome(_moved(finding, where))
            elif finding.subject != "records" and (
                finding.kind == "journal-damaged" or not self._inspection.facts.complete
            ):
                where = quarantine.move(self._directories, layout.JOURNAL, finding.subject, "does not verify")
                self._add_outcome(_moved(finding, where))
            else:
                self._add_outcome(Outcome.expected(finding))


def _moved(finding: Finding, where: str) -> Outcome:
    outcome = Outcome.expected(finding)
    outcome.done = f"moved to {where}" if where else "already gone"
    return outcome
