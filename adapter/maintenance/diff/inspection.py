"""Inspection of the whole store: scan, replay and joins. The findings are Parquet files in the scratch directory.

Executors read the store and return sums for each side of a domain; a domain with equal sides needs no join. The others
are joined as DataFrames over the rows that the executors wrote.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from adapter.maintenance import progress, workspace
from adapter.maintenance.diff import store_identity
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.replay import BASE, COPY
from adapter.maintenance.expected.replay_process import ReplayFacts, ReplayProcess
from adapter.maintenance.findings import Finding, unreadable_cause, unreadable_finding
from adapter.maintenance.scan import executor, fingerprint, partition, rows, tree_audit
from adapter.maintenance.scan.index_tables import ScanOptions
from adapter.maintenance.scan.partition import Assignment, Partitions
from adapter.maintenance.scan.rows import RowWriter, parquet_rows
from adapter.store import disk, layout, locks, names
from adapter.store.disk import Directories
from adapter.store.journal import PADDING
from protocol.errors import MailError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TAIL_BYTES = 64 << 10  # read at a time when searching backwards for the end of the records
_LINK_POOL = "links"  # reading links waits for the disk, reading content uses the CPU: they run in parallel
_ROWS_PER_SHUFFLE_PARTITION = 50_000
JOINED_FINDINGS = "joined-findings"
_TREE_PARTITION = "0-tree"  # sorts before all others, so that findings about credentials come first
TORN = "the last append is incomplete and was never acknowledged"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Inspection:
    """The result of an inspection; findings are read from disk one at a time."""

    root: str
    scratch: str
    session: SparkSession
    assignment: Assignment = field(default_factory=Assignment)
    store: str = ""  # id of the store
    store_problem: str = ""  # the defect of the store id file in the root
    store_unreadable: str = ""  # why that file cannot be read now
    secret: bytes = field(default_factory=lambda: os.urandom(32))  # key of the set hashes
    facts: ReplayFacts = field(default_factory=ReplayFacts)
    counts: dict[str, int] = field(default_factory=dict)  # scanned entries by kind
    journal_bytes: int = 0  # size of the journal when the scan began
    kinds: Counter[str] = field(default_factory=Counter)  # findings by kind
    seconds: dict[str, float] = field(default_factory=dict)
    table_sums: fingerprint.Sums = field(default_factory=dict)  # of all tables except the cache
    #: Scratch directories with cache rows; the rows of unchanged files are in that of an earlier inspection.
    cache_directories: list[str] = field(default_factory=list)
    unlistable: dict[layout.Parts, str] = field(default_factory=dict)  # directory -> why it cannot be listed
    _driver_findings: list[Finding] = field(default_factory=list)

    def findings(self, kinds: Collection[str] | None = None) -> Iterator[Finding]:
        """Yield the findings, optionally only those of some kinds."""
        for finding in self._driver_findings:
            if kinds is None or finding.kind in kinds:
                yield finding
        if kinds is not None and not any(self.kinds[kind] for kind in kinds):
            return
        for directory in (rows.FINDINGS_DIRECTORY, JOINED_FINDINGS):
            for row in parquet_rows(f"{self.scratch}/{directory}", rows.FINDING_SCHEMA.names):
                if kinds is None or row["kind"] in kinds:
                    yield Finding(**row)


def run_inspection(
    session: SparkSession,
    replay: ReplayProcess,
    root: str,
    scratch: str,
    report_progress: Progress,
    earlier: Inspection | None = None,
) -> Inspection:
    """Inspect the store. Rows of entries unchanged since ``earlier``, an inspection of the same run, are reused."""
    began = time.monotonic()
    new_directories = [
        rows.FINDINGS_DIRECTORY,
        rows.CACHE_DIRECTORY,
        rows.FILES_DIRECTORY,
        rows.TABLES_DIRECTORY,
        *(rows.part_directory(rows.FILES_DIRECTORY, part) for part in rows.FILE_PARTS),
        *(rows.part_directory(rows.TABLES_DIRECTORY, part) for part in rows.TABLE_PARTS),
    ]
    workspace.make_directories(scratch, new_directories)
    with contextlib.closing(Directories(root)) as directories:
        identity = store_identity.resolve_store_id(directories)
    inspection = Inspection(
        root,
        scratch,
        session,
        store=identity.store,
        store_problem=identity.problem,
        store_unreadable=identity.unreadable,
    )
    if earlier is not None:
        inspection.assignment, inspection.secret = earlier.assignment, earlier.secret
        inspection.cache_directories += earlier.cache_directories
    inspection.cache_directories.append(scratch)
    run = _InspectionRun(inspection, report_progress, earlier)
    replay.request(scratch, inspection.store, earlier.scratch if earlier else "")
    run.scan_files()
    inspection.facts = replay.result(scratch)
    run.record_time("replay", began)
    if inspection.facts.is_blind:
        run.report_unreadable_only()
    else:
        run.compare_tables()
        run.join_differences()
    run.record_time("whole", began)
    return inspection


class _InspectionRun:
    """The steps of an inspection."""

    def __init__(self, inspection: Inspection, report_progress: Progress, earlier: Inspection | None) -> None:
        self._inspection = inspection
        self._earlier = earlier
        self._report_progress = report_progress
        scratch = inspection.scratch
        self._sums: list[fingerprint.Sums] = []
        self._content: list[str] = []  # paths of the content partitions
        self._options = ScanOptions(
            root=inspection.root,
            scratch=scratch,
            base=f"{scratch}/{BASE}",
            copy=f"{scratch}/{COPY}",
            secret=inspection.secret,
            store=inspection.store,
            earlier=earlier.scratch if earlier else "",
            describe=not _has_journal(inspection.root),
        )

    def record_time(self, phase: str, began: float) -> None:
        self._inspection.seconds[phase] = round(time.monotonic() - began, 3)

    def scan_files(self) -> None:
        """List the directories and scan all files and links; audit the tree on the driver."""
        inspection = self._inspection
        root, scratch, unlistable = inspection.root, inspection.scratch, inspection.unlistable
        inspection.journal_bytes = journal_size(root)
        began = time.monotonic()
        content = partition.partition_content(root, scratch, inspection.assignment, unlistable)
        self._content = content.paths
        messages = content.counts.get("message", 0)
        self.record_time("list", began)
        began = time.monotonic()
        with (
            progress.reporting(inspection.session, self._report_progress, messages),
            ThreadPoolExecutor(1) as background,
        ):
            content_scan = background.submit(self._run, content.paths)  # while mailboxes are listed
            mailboxes = partition.partition_mailboxes(root, scratch, unlistable)
            self._sums += self._run([path for each in mailboxes for path in each.paths], pool=_LINK_POOL)
            self._audit_tree()  # while content is scanned
            self._sums += content_scan.result()
        inspection.counts = {what: count for each in (content, *mailboxes) for what, count in each.counts.items()}
        self.record_time("scan", began)

    def _audit_tree(self) -> None:
        with (
            contextlib.closing(Directories(self._inspection.root)) as directories,
            RowWriter(self._inspection.scratch, _TREE_PARTITION) as writer,
        ):
            for finding in tree_audit.audit(directories):
                writer.add_finding(finding)

    def compare_tables(self) -> None:
        """Compute the sums of the expected tables (or reuse them), and compare the tables with the index."""
        began = time.monotonic()
        inspection = self._inspection
        base_sums = self._earlier.table_sums if self._earlier and inspection.facts.unchanged else {}
        sums = self._run(self._table_partitions(detail=False, has_base_sums=bool(base_sums)).paths)
        merged = fingerprint.merge_sums(sums)
        cache_sums = {key: value for key, value in merged.items() if key[0] == fingerprint.CACHE}
        inspection.table_sums = base_sums or {key: value for key, value in merged.items() if key not in cache_sums}
        self._sums += [inspection.table_sums, cache_sums]
        self.record_time("tables", began)

    def join_differences(self) -> None:
        """Join the domains that differ, and collect the findings that need no join."""
        inspection = self._inspection
        began = time.monotonic()
        differing = fingerprint.differing_domains(fingerprint.merge_sums(self._sums))
        if inspection.facts.index_problem:
            differing.discard(fingerprint.CACHE)
        if fingerprint.MESSAGE in differing and inspection.facts.source in ("salvage", "nothing"):
            self._describe_messages()
        if differing:
            self._join(differing)
        inspection._driver_findings = [
            *(unreadable_finding(where, why) for where, why in sorted(inspection.unlistable.items())),
            *_identity_findings(inspection),
            *_history_findings(inspection.facts),
            *_staging_findings(inspection.root),
            *_credentials_findings(inspection.root, self._options.base),
        ]
        inspection.kinds.update(finding.kind for finding in inspection._driver_findings)
        for directory in (rows.FINDINGS_DIRECTORY, JOINED_FINDINGS):
            inspection.kinds.update(row["kind"] for row in parquet_rows(f"{inspection.scratch}/{directory}", ["kind"]))
        self.record_time("join", began)

    def report_unreadable_only(self) -> None:
        """Report the files that must be made readable first: without the journal nothing can be decided."""
        inspection = self._inspection
        inspection._driver_findings = [
            *(unreadable_finding(where, why) for where, why in sorted(inspection.unlistable.items())),
            *_history_findings(inspection.facts),
        ]
        inspection.kinds.update(finding.kind for finding in inspection._driver_findings)

    def _describe_messages(self) -> None:
        """Scan content again to extract index entries, unless the first scan did: index and journal are lost."""
        if not self._options.describe:
            self._options = replace(self._options, describe=True)
            self._run(self._content)

    def _join(self, differing: set[str]) -> None:
        from adapter.maintenance.diff import joins

        inspection = self._inspection
        session = inspection.session
        self._run(self._table_partitions(detail=True).paths)
        with RowWriter(inspection.scratch, "unlistable") as writer:
            for where, why in inspection.unlistable.items():
                writer.add_file("unlistable", {"place": layout.absolute(*where), "cause": why})
        files = self._read(rows.FILES_DIRECTORY, rows.FILE_SCHEMA)
        table_rows = self._read(rows.TABLES_DIRECTORY, rows.TABLE_SCHEMA)
        largest = max(inspection.counts.values(), default=0)
        session.conf.set("spark.sql.shuffle.partitions", max(2, largest // _ROWS_PER_SHUFFLE_PARTITION))
        joined = joins.reconcile(session, files, table_rows, differing)
        joined.write.parquet(f"{inspection.scratch}/{JOINED_FINDINGS}")

    def _table_partitions(self, *, detail: bool, has_base_sums: bool = False) -> Partitions:
        inspection = self._inspection
        return partition.partition_tables(
            self._options.base,
            inspection.scratch,
            inspection.counts.get("message", 0),
            detail=detail,
            has_base_sums=has_base_sums,
            has_index=not inspection.facts.index_problem,
        )

    def _run(self, paths: list[str], pool: str | None = None) -> list[fingerprint.Sums]:
        """Run one task per partition and collect the sums. Scheduler pools get equal shares of the machine."""
        if not paths:
            return []
        context = self._inspection.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
        tasks = context.parallelize(paths, len(paths))
        sums: list[fingerprint.Sums] = tasks.map(partial(executor.scan_partition, options=self._options)).collect()
        return sums

    def _read(self, directory: str, schema: pa.Schema) -> DataFrame:
        return self._inspection.session.read.schema(rows.ddl(schema)).parquet(f"{self._inspection.scratch}/{directory}")


def journal_size(root: str) -> int:
    """Size of all journal records in octets, without the padding at the end; 0 if the journal cannot be read."""
    with (
        contextlib.suppress(OSError),
        contextlib.closing(Directories(root)) as directories,
        directories.open(layout.JOURNAL) as directory,
    ):
        segments = sorted(name for name in os.listdir(directory) if layout.JOURNAL_SEGMENT.match(name))
        sizes = [os.stat(name, dir_fd=directory, follow_symlinks=False).st_size for name in segments]
        return sum(sizes) - (_padding(directory, segments[-1], sizes[-1]) if segments else 0)
    return 0


def _padding(directory: int, name: str, size: int) -> int:
    end = size
    with open(disk.open_read(directory, name), "rb") as file:
        while end:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            length = len(file.read(end - start).rstrip(PADDING))
            if length:
                return size - start - length
            end = start
    return size


def _has_journal(root: str) -> bool:
    with (
        contextlib.suppress(OSError),
        contextlib.closing(Directories(root)) as directories,
        directories.open(layout.JOURNAL) as directory,
    ):
        return any(layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
    return False


# --- findings without a join -----------------------------------------------------------------------------------------


def _identity_findings(inspection: Inspection) -> Iterator[Finding]:
    """The store id file, and files of other stores."""
    if inspection.store_problem:
        yield Finding("store-id-damaged", layout.STORE_ID_FILE, detail=inspection.store_problem)
    if inspection.store_unreadable:
        yield Finding("unreadable", layout.STORE_ID_FILE, detail=inspection.store_unreadable)
    facts = inspection.facts
    foreign = (("journal-foreign", facts.foreign_segments), ("snapshot-foreign", facts.foreign_snapshots))
    for kind, files in foreign if not facts.is_blind else ():
        for name, store in files.items():
            yield Finding(kind, name, detail=f"belongs to store {store}")


def _history_findings(facts: ReplayFacts) -> Iterator[Finding]:
    """The index as a whole, journal segments and snapshots."""
    for subject, why in facts.unreadable.items():
        yield Finding("unreadable", subject, detail=why)
    if facts.is_blind:
        return
    if facts.index_kind:
        yield Finding(facts.index_kind, layout.INDEX_FILE, detail=facts.index_detail)
    for key, wrong in facts.wrong_meta.items():
        yield Finding("index-meta-wrong", key, detail=wrong)
    if facts.torn:
        yield Finding("journal-torn", facts.torn, detail=TORN)
    for name, why in facts.damaged_segments.items():
        yield Finding("journal-damaged", name, detail=why)
    if facts.gap and not facts.damaged_segments:
        yield Finding("journal-damaged", "records", detail=facts.gap)
    for name in facts.damaged_snapshots:
        yield Finding("snapshot-damaged", name, detail="does not match its manifest")


def _staging_findings(root: str) -> Iterator[Finding]:
    """Staging directories that no running process claims."""
    with contextlib.closing(Directories(root)) as directories, contextlib.suppress(FileNotFoundError):
        try:
            with directories.open(layout.STAGING) as staging:
                entries = sorted(os.listdir(staging))
        except PermissionError as error:
            yield unreadable_finding(layout.STAGING, unreadable_cause(error))
            return
        for name in entries:
            if layout.DROPPED[-1] == name or not names.is_text(name):  # the audit reports other names as strays
                continue
            try:
                with directories.open(layout.staging_directory(name)) as fd, locks.claim_directory(fd) as free:
                    if not free:
                        continue
            except FileNotFoundError:
                continue
            except OSError as error:
                if why := unreadable_cause(error):
                    yield unreadable_finding(layout.staging_directory(name), why)
                    continue
            yield Finding("staging-leftover", name, place=layout.STAGING[0], name=name)


def _credentials_findings(root: str, base: str) -> Iterator[Finding]:
    """Passwords of unregistered addresses."""
    addresses = set()
    data = b""
    with contextlib.closing(Directories(root)) as directories:
        try:
            with directories.open(layout.CREDENTIALS) as directory:
                data = disk.read_file(directory, layout.CREDENTIALS_FILE)
        except OSError as error:
            if why := unreadable_cause(error):
                yield unreadable_finding((*layout.CREDENTIALS, layout.CREDENTIALS_FILE), why)
        for line in data.decode("utf-8", "replace").splitlines():
            with contextlib.suppress(MailError):
                if ":" in line and not line.startswith("#"):
                    addresses.add(names.normalise_address(line.partition(":")[0]))
    with contextlib.closing(tables.connect(base)) as connection:
        for address in sorted(addresses):
            if not connection.execute(
                "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status IN ('active', 'inactive')", (address,)
            ).fetchone():
                yield Finding("credentials-orphan", address, detail="has a password but no registration")
