"""SQL query plans: every statement uses an index, except for the table scans listed here.

The cost of a delivery, a login or a command must not grow with the store. SQLite chooses the plan when it prepares a
statement, so ``EXPLAIN QUERY PLAN`` over an empty index shows what a full one would do (we never run ``ANALYZE``).
"""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapter.api import Store
from adapter.store import index
from adapter.store.queries import recent_marks, text_index
from adapter.store.queries.messages import CachedAttribute
from tests.support.imapd import make_store, serving
from tests.support.messages import message
from tests.support.store.statements import ROOT, Statement, Unaccounted, Values, collect, collect_from, plain
from tests.support.stores import ADA, BOB, STORE

#: Modules with unchecked SQL, and the reason.
EXCLUDED = {
    "adapter/maintenance/repair/apply.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/expected/bulk_replay.py": "fills a new index, in bulk, with its indexes dropped",
    "adapter/maintenance/scan/index_compare.py": "compares all rows of two indexes",
    "adapter/maintenance/repair/message_rows.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/diff/joins.py": "Spark SQL",
    "adapter/maintenance/expected/replay.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/report.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/repair/restore.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/expected/salvage.py": "salvages the readable rows of a damaged index",
    "adapter/maintenance/scan/index_tables.py": "reads all rows, in ranges of keys",
    "adapter/maintenance/diff/recheck.py": "tables of its own, in the scratch directory",
    "adapter/maintenance/expected/normalise.py": "normalises all rows of a new index",
    "adapter/maintenance/expected/tables.py": "divides all rows into ranges of keys",
}

#: Allowed scans: (module, beginning of the statement) -> the scanned table, and the reason.
SCANS = {
    ("adapter/store/queries/contents.py", "SELECT m.message_id, coalesce(d.found, m.file_sha256) FROM messages m"): (
        "m",
        "restore verifies every message of a backup",
    ),
    ("adapter/store/queries/contents.py", "SELECT part FROM damaged_parts"): (
        "damaged_parts",
        "recorded losses are few",
    ),
    ("adapter/maintenance/repair/folders.py", "SELECT folder_id FROM folders"): ("folders", "repair scans all rows"),
    ("adapter/maintenance/repair/accounts.py", "SELECT registration_id FROM mailbox_registrations"): (
        "mailbox_registrations",
        "repair needs an id that no registration has",
    ),
    ("adapter/store/queries/schema.py", "SELECT type, name, tbl_name, sql FROM sqlite_schema"): (
        "sqlite_schema",
        "compares the schema when a store is opened",
    ),
    ("adapter/store/queries/schema.py", "SELECT key, value FROM meta"): ("meta", "a few rows, when a store is opened"),
    ("adapter/store/queries/messages.py", "SELECT folder_id, uidvalidity, uidnext FROM folders"): (
        "folders",
        "once at the start of a process",
    ),
    ("adapter/store/queries/outbox.py", "SELECT message_id, size FROM messages WHERE message_id IN (SELECT"): (
        "outbox",
        "markpost queue shows the whole outbox",
    ),
    ("adapter/store/queries/outbox.py", "SELECT queue_id"): ("outbox", "markpost queue shows the whole outbox"),
    ("adapter/store/queries/mailboxes.py", "SELECT registration_id, address, status, directory, created_at FROM"): (
        "mailbox_registrations",
        "lists all registrations",
    ),
    ("adapter/store/queries/recent_marks.py", "SELECT folder_id FROM recent_marks"): (
        "recent_marks",
        "once at the start of a process",
    ),
    ("adapter/store/queries/schema.py", "SELECT message_id FROM messages"): (
        "messages",
        "a snapshot copies whole tables",
    ),
    ("adapter/store/queries/text_index.py", "SELECT row FROM texts WHERE (row >> 32)"): (
        "texts",
        "check scans all rows",
    ),
    ("adapter/store/queries/text_index.py", "SELECT count(*) FROM sqlite_schema"): (
        "sqlite_master",
        "counts the tables",
    ),
    ("adapter/store/queries/outbox.py", "SELECT count(*) FILTER"): ("outbox", "counts the outbox, every few seconds"),
    ("adapter/store/queries/folders.py", "SELECT folder_id FROM folders"): (
        "folders",
        "recovery scans all rows",
    ),
    ("adapter/store/queries/folders.py", "SELECT DISTINCT directory FROM mailbox_registrations"): (
        "mailbox_registrations",
        "recovery scans all rows",
    ),
}


def _attributes(module: Any) -> list[str]:
    combinations = (
        [CachedAttribute.ENVELOPE],
        [CachedAttribute.THREAD_ID],
        [CachedAttribute.ENVELOPE, CachedAttribute.THREAD_ID],
        list(CachedAttribute),
    )
    return [
        module.attributes_statement(attributes, by_range=by_range)
        for attributes in combinations
        for by_range in (True, False)
    ]


def _text_index(module: Any) -> list[str]:
    statements = []
    for table, column in (("headers", "header"), ("bodies", "body")):
        candidates = module._CANDIDATES.format(table=table)
        statements += [candidates, module._FIND.format(candidates=candidates, column=column)]
        statements.append(f"INSERT INTO {table} ({table}, rowid, {column}) VALUES ('delete', ?, ?)")
    return statements


#: Statements that are assembled at run time.
BUILT = {
    "adapter/store/queries/messages.py": _attributes,
    "adapter/store/queries/text_search.py": _text_index,
    "adapter/store/queries/projections.py": lambda module: [*module.ON_RANGE, *module.ON_LIST],
}
#: Local names in f-strings.
LOCALS: dict[str, Values] = {
    "adapter/store/queries/schema.py": {"table": ["messages"], "quoted": ["message_id"], "places": ["?"]},
    "adapter/store/queries/projections.py": {"table": ["mailbox_state", "mailbox_projections"]},
}


def _constants(module: Any, pattern: re.Pattern[str]) -> list[str]:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in nodes if pattern.match(str(node.value))]


def _collected() -> list[Statement]:
    modules = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "adapter").rglob("*.py"))
    return [
        statement
        for module in modules
        if module not in EXCLUDED
        for statement in collect(module, LOCALS.get(module), BUILT.get(module))
    ]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, sqlite3.Connection]]:
    """The empty databases of a store: the index, and the private databases of single modules."""
    place = tmp_path_factory.mktemp("plans")
    texts = text_index.connect(str(place))
    made = {
        "": index.create(str(place / "index.sqlite"), STORE),
        "adapter/store/queries/text_search.py": texts,
        "adapter/store/queries/text_index.py": texts,
        "adapter/store/queries/recent_marks.py": recent_marks.open_marks(str(place), list),
    }
    yield made
    for connection in made.values():
        connection.close()


def _database(databases: dict[str, sqlite3.Connection], module: str) -> sqlite3.Connection:
    return databases.get(module, databases[""])


def _scans(connection: sqlite3.Connection, sql: str) -> list[str]:
    """Return the tables that a statement scans."""
    named = re.findall(r":(\w+)", sql)
    values: Any = dict.fromkeys(named) if named else [None] * len(re.findall(r"\?(?!\d)", sql))
    try:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    except sqlite3.Error as error:
        return [f"nothing ({error})"]  # a statement that cannot be prepared is for another database, or wrong
    return [table for *_, detail in plan if (table := _scanned(detail)) is not None]


def _scanned(detail: str) -> str | None:
    """Return the table that a step of a plan scans, or None."""
    words = detail.split()
    if words[0] == "SCAN" and words[1] != "CONSTANT":
        # A virtual table with a constraint has another number than 0, or a text: those of json_each and of MATCH.
        return None if re.search(r"VIRTUAL TABLE INDEX (?!0:$)", detail) else words[1]
    if "AUTOMATIC" in words:  # an index that SQLite makes for one query is a scan, too
        return words[1]
    return None


def _subqueries(sql: str) -> set[str]:
    """Return the names of subqueries in FROM: they have few rows, and their own plan is checked as a separate step."""
    return set(re.findall(r"\) AS (\w+)", sql))


def _violations(
    databases: dict[str, sqlite3.Connection], statements: Sequence[Statement]
) -> list[tuple[Statement, str]]:
    return [
        (statement, table)
        for statement in statements
        for table in _scans(_database(databases, statement.module), statement.sql)
        if table not in _subqueries(statement.sql) and not table.startswith("(subquery")
    ]


def _names(key: tuple[str, str], statement: Statement) -> bool:
    return statement.module == key[0] and statement.sql.startswith(key[1])


def test_every_statement_finds_its_rows_by_an_index(databases: dict[str, sqlite3.Connection]) -> None:
    violations = _violations(databases, _collected())
    unnamed = [
        f"{statement.module}: {table} is scanned by: {statement.sql}"
        for statement, table in violations
        if not any(_names(key, statement) and table == allowed for key, (allowed, _) in SCANS.items())
    ]
    assert not unnamed, "\n".join(unnamed)
    needless = [
        key
        for key, (allowed, _) in SCANS.items()
        if not any(_names(key, statement) and table == allowed for statement, table in violations)
    ]
    assert not needless, needless


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT thread_id FROM messages WHERE header_id = ? LIMIT 1",  # the index is partial
        "SELECT count(*) FROM messages",
        "UPDATE messages SET subject = ? WHERE subject = ?",
        "DELETE FROM mailbox_projections WHERE uid = ?",
        "SELECT 1 FROM messages a JOIN messages b ON a.subject = b.sender WHERE a.message_id > ?",
        "SELECT 1 FROM messages WHERE message_id = ? AND EXISTS (SELECT 1 FROM outbox WHERE recipient = sender)",
    ],
)
def test_statement_without_index_is_a_violation(databases: dict[str, sqlite3.Connection], sql: str) -> None:
    assert _violations(databases, [Statement("adapter/any.py", sql)])


def test_excluded_modules_have_statements() -> None:
    for module in EXCLUDED:
        collected = collect_from(ast.parse((ROOT / module).read_text(encoding="utf-8")), {}, {})
        assert collected.statements or collected.parts, module


@pytest.mark.parametrize(
    "code",
    [
        "def f(c, t):\n    c.execute(f'SELECT 1 FROM {t}')",
        "def f(c, rest):\n    c.execute('SELECT 1 FROM messages ' + rest)",
        "def f(c, sql):\n    sql += ' WHERE subject = ?'",
        "_A = 'SELECT 1 FROM {table}'\ndef f(c, t):\n    c.execute(_A.format(table=t))",
    ],
)
def test_statement_that_cannot_be_collected_is_reported(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_module.py").write_text(code)
    monkeypatch.setattr("tests.support.store.statements.ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(Unaccounted):
        collect("some_module.py")


async def test_statements_of_a_busy_store_were_all_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every statement executed in a scenario of all protocols is among the collected ones."""
    run: set[str] = set()

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            run.add(plain(sql))
            return super().execute(sql, *values)

        def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
            run.add(plain(sql))
            return super().executemany(sql, values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=Recording, **options))
    await asyncio.to_thread(make_store, tmp_path / "store", ADA, BOB)
    await asyncio.to_thread(_use_as_program, tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        client = await running.login(ADA)
        for subject in ("one", "two", "three"):
            octets = message(subject, message_id=f"<{subject}@example.test>", in_reply_to="<one@example.test>")
            assert (await client.append("INBOX", octets)).startswith(b"OK")
            assert (await client.append("Sent", octets)).startswith(b"OK")
        for command in (
            'LIST "" * RETURN (STATUS (MESSAGES UNSEEN SIZE DELETED))',
            "CREATE More",
            "SUBSCRIBE More",
            "RENAME More Less",
            "SELECT INBOX",
            "FETCH 1:* (FLAGS ENVELOPE BODYSTRUCTURE PREVIEW THREADID EMAILID)",
            "FETCH 1,3 (BODY.PEEK[])",
            "UID SEARCH TEXT Hello SUBJECT one",
            "UID SORT (SUBJECT) UTF-8 ALL",
            "UID THREAD REFERENCES UTF-8 ALL",
            "STORE 1 +FLAGS (\\Seen $Label)",
            "STORE 1:2 FLAGS (other)",
            "COPY 1:2 Less",
            "MOVE 3 Less",
            "STORE 1 +FLAGS (\\Deleted)",
            "EXPUNGE",
            "DELETE Less",
            "CHECK",
        ):
            await client.ok(command)
    collected = {_shape(statement.sql) for statement in _collected()}
    verbs = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ")
    statements = {_shape(sql) for sql in run if sql.startswith(verbs)}
    assert len(statements) > 50
    missed = sorted(statements - collected)
    assert not missed, "\n".join(missed)


def _shape(sql: str) -> str:
    """Reduce statements that fetch different columns of the same rows to one shape."""
    return re.sub(r"(?<=^SELECT p.uid, p.message_id, c.message_id, ).* FROM ", "… FROM ", sql)


def _use_as_program(root: Path) -> None:
    with Store.open(root) as store:
        ada, bob = store.mailbox(ADA), store.mailbox(BOB)
        ada.send("The engine **runs**.", to=BOB, subject="News", attachments=[("plan.txt", b"Let it run.\n" * 1000)])
        (summary,) = bob.messages(unread=True)
        mail = bob.read(summary)
        bob.set_flags(summary, "read", "todo")
        bob.send("Splendid!", reply_to=mail)
        bob.archive(summary)
