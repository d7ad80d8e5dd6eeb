"""One look at the whole store: scan, replay and joins. What it found is in Parquet files of the scratch directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adapter.maintenance import chunks, reconcile, replay, workspace
from adapter.maintenance.findings import Finding
from adapter.maintenance.replay import BASE, COPY, Facts
from adapter.store import disk, layout, locks, names
from adapter.store.disk import Directories
from protocol.errors import MailError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHUFFLE_ROWS = 50_000  # of one partition of a join
TORN = "an append that was never acknowledged"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Survey:
    root: str
    scratch: str
    facts: Facts
    files: DataFrame
    counts: dict[str, int]  # what was looked at
    journal_at: int  # size of the journal when the scan began
    found: Counter[str] = field(default_factory=Counter)
    passwords: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    _others: list[Finding] = field(default_factory=list)

    def findings(self, kinds: Collection[str] | None = None) -> Iterator[Finding]:
        """One at a time; ``kinds`` limits them."""
        for finding in self._others:
            if kinds is None or finding.kind in kinds:
                yield finding
        if kinds is not None and not any(self.found[kind] for kind in kinds):
            return
        for row in parquet_rows(f"{self.scratch}/findings", [*reconcile.COLUMNS]):
            if kinds is None or row["kind"] in kinds:
                yield Finding(**row)


def parquet_rows(directory: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a directory of Parquet files, in bounded batches."""
    import pyarrow.parquet as pq

    for name in sorted(os.listdir(directory)):
        if name.endswith(".parquet"):
            with pq.ParquetFile(f"{directory}/{name}") as file:
                for batch in file.iter_batches(2000, columns=columns):
                    yield from batch.to_pylist()


def survey(session: SparkSession, root: str, scratch: str, say: Progress) -> Survey:
    from adapter.maintenance.source import StoreSource

    session.dataSource.register(StoreSource)
    began = time.monotonic()
    seconds = {}
    process = replay.start(root, scratch)
    try:
        journal_at = journal_size(root)
        pieces = chunks.files(root, scratch, "files")
        seconds["list"] = time.monotonic() - began
        say(f"{pieces.counts.get('message', 0)} messages, {pieces.counts.get('link', 0)} links listed")
        describe = "no" if _has_journal(root) else "yes"
        files = _load(session, scratch, "files", pieces.paths, root, describe)
        seconds["scan"] = time.monotonic() - began
        say("files read; comparing")
        facts = replay.finish(process, scratch)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    seconds["replay"] = time.monotonic() - began
    index_ok = not facts.index_trouble
    base, copy = f"{scratch}/{BASE}", f"{scratch}/{COPY}"
    ranges = chunks.rows(base, copy, scratch, compare=index_ok, cached=index_ok)
    rows = _load(session, scratch, "rows", ranges.paths, root, "no")
    seconds["tables"] = time.monotonic() - began
    largest = max(pieces.counts.values(), default=0)
    session.conf.set("spark.sql.shuffle.partitions", max(2, largest // _SHUFFLE_ROWS))
    found = reconcile.reconcile(session, files, rows)
    found.coalesce(1).write.parquet(f"{scratch}/findings")
    result = Survey(root, scratch, facts, files, pieces.counts, journal_at, seconds=seconds)
    result._others = [*_of_the_whole(facts), *_staging(root), *_credentials(root, base, result.passwords)]
    for row in parquet_rows(f"{scratch}/findings", ["kind"]):
        result.found[row["kind"]] += 1
    result.found.update(finding.kind for finding in result._others)
    seconds["join"] = time.monotonic() - began
    return result


def _load(session: SparkSession, scratch: str, what: str, paths: list[str], root: str, describe: str) -> DataFrame:
    from adapter.maintenance.source import FILES, ROWS, ddl

    listing, target = f"{scratch}/{what}-pieces", f"{scratch}/{what}"
    workspace.write_file(listing, "".join(f"{path}\n" for path in paths).encode())
    schema = ddl(FILES if what == "files" else ROWS)
    if paths:
        reader = session.read.format("markpost").options(
            rows=what,
            pieces=listing,
            root=root,
            base=f"{scratch}/{BASE}",
            copy=f"{scratch}/{COPY}",
            describe=describe,
        )
        reader.load().write.partitionBy("part").parquet(target)
        return session.read.schema(schema).parquet(target)
    return session.createDataFrame([], schema)


def journal_size(root: str) -> int:
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(Directories(root)) as directories,
        directories.open(layout.JOURNAL) as directory,
        os.scandir(directory) as found,
    ):
        return sum(entry.stat(follow_symlinks=False).st_size for entry in found)
    return 0


def _has_journal(root: str) -> bool:
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(Directories(root)) as directories,
        directories.open(layout.JOURNAL) as directory,
    ):
        return any(layout.JOURNAL_SEGMENT.match(name) for name in os.listdir(directory))
    return False


# --- what needs no join ----------------------------------------------------------------------------------------------


def _of_the_whole(facts: Facts) -> Iterator[Finding]:
    if facts.index_trouble:
        kind = "index-missing" if facts.index_trouble == "missing" else "index-unreadable"
        yield Finding(kind, layout.INDEX_FILE, detail=facts.index_trouble)
    if facts.torn:
        yield Finding("journal-torn", facts.torn, detail=TORN)
    for name, why in facts.damaged_segments.items():
        yield Finding("journal-damaged", name, detail=why)
    if facts.gap and not facts.damaged_segments:
        yield Finding("journal-damaged", "records", detail=facts.gap)
    for name in facts.damaged_snapshots:
        yield Finding("snapshot-damaged", name, detail="does not match its manifest")


def _staging(root: str) -> Iterator[Finding]:
    """What no living process claims."""
    with contextlib.closing(Directories(root)) as directories, contextlib.suppress(FileNotFoundError):
        with directories.open(layout.STAGING) as staging:
            found = sorted(os.listdir(staging))
        for name in found:
            if layout.DROPPED[-1] == name:
                continue
            try:
                with directories.open(layout.staging_directory(name)) as fd, locks.claim_directory(fd) as free:
                    if not free:
                        continue
            except FileNotFoundError:
                continue
            except OSError:
                pass
            yield Finding("staging-leftover", name, place=layout.STAGING[0], name=name)


def _credentials(root: str, base: str, passwords: set[str]) -> Iterator[Finding]:
    """Passwords of addresses that are not registered."""
    from adapter.maintenance import tables

    with contextlib.closing(Directories(root)) as directories, contextlib.suppress(FileNotFoundError):
        with directories.open(layout.CREDENTIALS) as directory:
            data = disk.read_file(directory, layout.CREDENTIALS_FILE)
        for line in data.decode("utf-8", "replace").splitlines():
            with contextlib.suppress(MailError):
                if ":" in line and not line.startswith("#"):
                    passwords.add(names.normalise_address(line.partition(":")[0]))
    with contextlib.closing(tables.connect(base)) as connection:
        for address in sorted(passwords):
            if not connection.execute(
                "SELECT 1 FROM mailbox_registrations WHERE address = ? AND status IN ('active', 'inactive')", (address,)
            ).fetchone():
                yield Finding("credentials-orphan", address, detail="has a password and no registration")
