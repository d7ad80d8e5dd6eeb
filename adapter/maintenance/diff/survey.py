"""One look at the whole store: scan, replay and joins. What it found is in Parquet files of the scratch directory.

Executors read the store and add up what they see on either side; a domain whose sides are equal needs no join. The rest
is joined as DataFrames over the rows that the executors wrote.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from adapter.maintenance import progress, workspace
from adapter.maintenance.diff import witnesses
from adapter.maintenance.expected import tables
from adapter.maintenance.expected.record_replay import Replayer
from adapter.maintenance.expected.replay import BASE, COPY
from adapter.maintenance.expected.store_facts import Facts
from adapter.maintenance.findings import Finding
from adapter.maintenance.scan import executor, fingerprint, partition, tree_audit, unreadable
from adapter.maintenance.scan import rows as fragments
from adapter.maintenance.scan.partition import Pieces, Places
from adapter.maintenance.scan.rows import Fragments, parquet_rows
from adapter.store import disk, layout, locks, names
from adapter.store.disk import Directories
from adapter.store.journal import PADDING
from protocol.errors import MailError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TAIL = 64 << 10
_BESIDE = "beside"  # reading links is waiting for the disk, reading content is work: they go together
_SHUFFLE_ROWS = 50_000  # of one partition of a join
JOINS = "findings"
_TREE = "0-tree"  # first of all fragments: in it credentials come first
TORN = "an append that was never acknowledged"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Survey:
    root: str
    scratch: str
    session: SparkSession
    places: Places = field(default_factory=Places)
    store: str = ""  # id of the store
    store_problem: str = ""  # what is wrong with the file in the root that names it
    store_unreadable: str = ""  # why that file cannot be read now
    secret: bytes = field(default_factory=lambda: os.urandom(32))  # of the sums
    facts: Facts = field(default_factory=Facts)
    counts: dict[str, int] = field(default_factory=dict)  # what was looked at
    journal_at: int = 0  # size of the journal when the scan began
    found: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    table_sums: fingerprint.Sums = field(default_factory=dict)  # of all tables but the cache
    #: Scratch directories with rows of the cache: those of unchanged files are in that of an earlier look.
    cache_places: list[str] = field(default_factory=list)
    closed: dict[layout.Parts, str] = field(default_factory=dict)  # directories that cannot be listed, and why
    _others: list[Finding] = field(default_factory=list)

    def findings(self, kinds: Collection[str] | None = None) -> Iterator[Finding]:
        """One at a time; ``kinds`` limits them."""
        for finding in self._others:
            if kinds is None or finding.kind in kinds:
                yield finding
        if kinds is not None and not any(self.found[kind] for kind in kinds):
            return
        for place in (fragments.FOUND_PLACE, JOINS):
            for row in parquet_rows(f"{self.scratch}/{place}", fragments.FOUND.names):
                if kinds is None or row["kind"] in kinds:
                    yield Finding(**row)


def survey(
    session: SparkSession, replayer: Replayer, root: str, scratch: str, say: Progress, earlier: Survey | None = None
) -> Survey:
    """``earlier``: a look of this run, of which everything is taken over that did not change since."""
    began = time.monotonic()
    places = [
        fragments.FOUND_PLACE,
        fragments.CACHE_PLACE,
        fragments.FILES_PLACE,
        fragments.ROWS_PLACE,
        *(fragments.part_place(fragments.FILES_PLACE, part) for part in fragments.FILE_PARTS),
        *(fragments.part_place(fragments.ROWS_PLACE, part) for part in fragments.ROW_PARTS),
    ]
    workspace.make_directories(scratch, places)
    with contextlib.closing(Directories(root)) as directories:
        verdict = witnesses.resolve(directories)
    new = Survey(
        root, scratch, session, store=verdict.store, store_problem=verdict.problem, store_unreadable=verdict.unreadable
    )
    if earlier is None:
        look = _Look(new, say, None)
    else:
        new.places, new.secret = earlier.places, earlier.secret
        look = _Look(new, say, earlier)
        look.survey.cache_places += earlier.cache_places
    look.survey.cache_places.append(scratch)
    replayer.ask(scratch, look.survey.store, earlier.scratch if earlier else "")
    look.files()
    look.survey.facts = replayer.answer(scratch)
    look.time("replay", began)
    if look.survey.facts.is_blind:
        look.only_unreadable()
    else:
        look.tables()
        look.join()
    look.time("whole", began)
    return look.survey


class _Look:
    """The steps of one look."""

    def __init__(self, survey: Survey, say: Progress, earlier: Survey | None) -> None:
        self.survey = survey
        self._earlier = earlier
        self._say = say
        scratch = survey.scratch
        self._sums: list[fingerprint.Sums] = []
        self._content: list[str] = []  # pieces
        self._options = {
            "root": survey.root,
            "scratch": scratch,
            "base": f"{scratch}/{BASE}",
            "copy": f"{scratch}/{COPY}",
            "secret": survey.secret.hex(),
            "store": survey.store,
            "earlier": earlier.scratch if earlier else "",
            "describe": "no" if _has_journal(survey.root) else "yes",
        }

    def time(self, phase: str, began: float) -> None:
        self.survey.seconds[phase] = round(time.monotonic() - began, 3)

    def files(self) -> None:
        survey = self.survey
        survey.journal_at = journal_size(survey.root)
        began = time.monotonic()
        content = partition.content(survey.root, survey.scratch, survey.places, survey.closed)
        self._content = content.paths
        messages = content.counts.get("message", 0)
        self.time("list", began)
        began = time.monotonic()
        with progress.told(survey.session, self._say, messages), ThreadPoolExecutor(1) as aside:
            scanning = aside.submit(self._run, content.paths)  # while mailboxes are still listed
            mailboxes = partition.mailboxes(survey.root, survey.scratch, survey.closed)
            self._sums += self._run([path for each in mailboxes for path in each.paths], pool=_BESIDE)
            self._audit_tree()  # while content is still read
            self._sums += scanning.result()
        survey.counts = {what: count for each in (content, *mailboxes) for what, count in each.counts.items()}
        self.time("scan", began)

    def _audit_tree(self) -> None:
        with (
            contextlib.closing(Directories(self.survey.root)) as directories,
            Fragments(self.survey.scratch, _TREE) as found,
        ):
            for finding in tree_audit.audit(directories):
                found.found(asdict(finding))

    def tables(self) -> None:
        """Sums of the tables, unless they are those of the earlier look; and the index against them."""
        began = time.monotonic()
        known = self._earlier.table_sums if self._earlier and self.survey.facts.unchanged else {}
        sums = self._run(self._ranges(detail=False, known=bool(known)).paths)
        cache = {key: value for key, value in fingerprint.total(sums).items() if key[0] == fingerprint.CACHE}
        self.survey.table_sums = known or {
            key: value for key, value in fingerprint.total(sums).items() if key not in cache
        }
        self._sums += [self.survey.table_sums, cache]
        self.time("tables", began)

    def join(self) -> None:
        """What does not add up is joined; with all else that is wrong it makes the findings."""
        survey = self.survey
        began = time.monotonic()
        differing = fingerprint.differing(fingerprint.total(self._sums))
        if survey.facts.index_trouble:
            differing.discard(fingerprint.CACHE)
        if fingerprint.MESSAGE in differing and survey.facts.source in ("salvage", "nothing"):
            self._describe()
        if differing:
            self._join(differing)
        survey._others = [
            *(unreadable.finding(where, why) for where, why in sorted(survey.closed.items())),
            *_identity(survey),
            *_of_the_whole(survey.facts),
            *_staging(survey.root),
            *_credentials(survey.root, self._options["base"]),
        ]
        survey.found.update(finding.kind for finding in survey._others)
        for place in (fragments.FOUND_PLACE, JOINS):
            survey.found.update(row["kind"] for row in parquet_rows(f"{survey.scratch}/{place}", ["kind"]))
        self.time("join", began)

    def only_unreadable(self) -> None:
        """Without the journal nothing can be decided: findings are the files that have to be made readable first."""
        survey = self.survey
        survey._others = [unreadable.finding(where, why) for where, why in sorted(survey.closed.items())]
        survey._others += _of_the_whole(survey.facts)
        survey.found.update(finding.kind for finding in survey._others)

    def _describe(self) -> None:
        """Files tell what neither index nor journal do. Executors read them once more, unless they have said so."""
        if self._options["describe"] != "yes":
            self._options["describe"] = "yes"
            self._run(self._content)

    def _join(self, differing: set[str]) -> None:
        from adapter.maintenance.diff import joins

        survey = self.survey
        session = survey.session
        self._run(self._ranges(detail=True).paths)
        with fragments.Fragments(survey.scratch, "closed") as written:
            for where, why in survey.closed.items():
                written.file("closed", {"place": layout.absolute(*where), "cause": why})
        files = self._read(fragments.FILES_PLACE, fragments.FILES)
        rows = self._read(fragments.ROWS_PLACE, fragments.ROWS)
        largest = max(survey.counts.values(), default=0)
        session.conf.set("spark.sql.shuffle.partitions", max(2, largest // _SHUFFLE_ROWS))
        joins.reconcile(session, files, rows, differing).write.parquet(f"{survey.scratch}/{JOINS}")

    def _ranges(self, *, detail: bool, known: bool = False) -> Pieces:
        index = not self.survey.facts.index_trouble
        messages = self.survey.counts.get("message", 0)
        return partition.rows(
            self._options["base"], self.survey.scratch, messages, detail=detail, known=known, index=index
        )

    def _run(self, paths: list[str], pool: str | None = None) -> list[fingerprint.Sums]:
        """Every piece is a task; what comes back of each are a few numbers. Pools get equal shares of the machine."""
        if not paths:
            return []
        context = self.survey.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]
        pieces = context.parallelize(paths, len(paths))
        found: list[fingerprint.Sums] = pieces.map(partial(executor.work, options=self._options)).collect()
        return found

    def _read(self, place: str, schema: pa.Schema) -> DataFrame:
        return self.survey.session.read.schema(fragments.ddl(schema)).parquet(f"{self.survey.scratch}/{place}")


def journal_size(root: str) -> int:
    """Octets of all records; the padding behind the last one does not count. 0 if it cannot be told."""
    with (
        contextlib.suppress(OSError),
        contextlib.closing(Directories(root)) as directories,
        directories.open(layout.JOURNAL) as directory,
    ):
        found = sorted(name for name in os.listdir(directory) if layout.JOURNAL_SEGMENT.match(name))
        sizes = [os.stat(name, dir_fd=directory, follow_symlinks=False).st_size for name in found]
        return sum(sizes) - (_padding(directory, found[-1], sizes[-1]) if found else 0)
    return 0


def _padding(directory: int, name: str, size: int) -> int:
    end = size
    with open(disk.open_read(directory, name), "rb") as file:
        while end:
            start = max(0, end - _TAIL)
            file.seek(start)
            kept = len(file.read(end - start).rstrip(PADDING))
            if kept:
                return size - start - kept
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


# --- what needs no join ----------------------------------------------------------------------------------------------


def _identity(survey: Survey) -> Iterator[Finding]:
    """The file that names the store, and files of other stores."""
    if survey.store_problem:
        yield Finding("store-id-damaged", layout.STORE_ID_FILE, detail=survey.store_problem)
    if survey.store_unreadable:
        yield Finding("unreadable", layout.STORE_ID_FILE, detail=survey.store_unreadable)
    facts = survey.facts
    foreign = (("journal-foreign", facts.foreign_segments), ("snapshot-foreign", facts.foreign_snapshots))
    for kind, found in foreign if not facts.is_blind else ():
        for name, store in found.items():
            yield Finding(kind, name, detail=f"belongs to store {store}")


def _of_the_whole(facts: Facts) -> Iterator[Finding]:
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


def _staging(root: str) -> Iterator[Finding]:
    """What no living process claims."""
    with contextlib.closing(Directories(root)) as directories, contextlib.suppress(FileNotFoundError):
        try:
            with directories.open(layout.STAGING) as staging:
                found = sorted(os.listdir(staging))
        except PermissionError as error:
            yield unreadable.finding(layout.STAGING, unreadable.cause(error))
            return
        for name in found:
            if layout.DROPPED[-1] == name or not names.is_text(name):  # that is a stray
                continue
            try:
                with directories.open(layout.staging_directory(name)) as fd, locks.claim_directory(fd) as free:
                    if not free:
                        continue
            except FileNotFoundError:
                continue
            except OSError as error:
                if why := unreadable.cause(error):
                    yield unreadable.finding(layout.staging_directory(name), why)
                    continue
            yield Finding("staging-leftover", name, place=layout.STAGING[0], name=name)


def _credentials(root: str, base: str) -> Iterator[Finding]:
    """Passwords of addresses that are not registered."""
    passwords = set()
    data = b""
    with contextlib.closing(Directories(root)) as directories:
        try:
            with directories.open(layout.CREDENTIALS) as directory:
                data = disk.read_file(directory, layout.CREDENTIALS_FILE)
        except OSError as error:
            if why := unreadable.cause(error):
                yield unreadable.finding((*layout.CREDENTIALS, layout.CREDENTIALS_FILE), why)
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
