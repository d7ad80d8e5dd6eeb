"""The import and path rules of the code, read from its syntax trees. Each rule is also shown to catch an offender."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import pytest

from tests.support.paths import REPOSITORY

ROOT = REPOSITORY
MAX_LINES = 450

# --- reading the code ------------------------------------------------------------------------------------------------


def _modules(package: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py"))


ADAPTER = _modules("adapter")
PROTOCOL = _modules("protocol")
TESTS = [module for module in _modules("tests") if module != "tests/test_architecture.py"]


def _source(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


@functools.cache
def _tree(source: str) -> ast.Module:
    """Every rule reads every module."""
    return ast.parse(source)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(tree: ast.AST, *, for_types: bool) -> Iterator[tuple[str, str]]:
    """(module, name) for everything imported; name is "" for ``import module``."""
    typed = {id(inner) for node in ast.walk(tree) if _only_for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in typed and not for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _docstrings(tree: ast.AST) -> set[int]:
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    return docstrings


# --- the rules: each takes a module's path and source, and returns what breaks it ---------------------------------

_IMPURE = {
    "asyncio", "filelock", "mmap", "multiprocessing", "os", "pathlib", "select", "shutil", "socket", "sqlite3",
    "ssl", "subprocess", "tempfile", "threading", "time", "adapter",
}  # fmt: skip


def impure_imports(module: str, source: str) -> list[str]:
    """``protocol/`` knows what bytes mean and nothing of files, sockets, threads or clocks."""
    tree = _tree(source)
    bad = [name for name, _ in _imports(tree, for_types=False) if name.split(".")[0] in _IMPURE]
    bad += [
        name
        for name, _ in _imports(tree, for_types=True)
        if name.split(".")[0] in _IMPURE - {"mmap"} and name not in bad
    ]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return bad + [f"{name}()" for call in calls if (name := _dotted(call.func)) in ("open", "io.open")]


_OS_MUTATORS = {
    "chmod", "chown", "copy_file_range", "fallocate", "fchmod", "fchown", "fdatasync", "fsync", "ftruncate", "lchown",
    "link", "makedirs", "mkdir", "mkfifo", "mknod", "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs",
    "rename", "renames", "replace", "rmdir", "sendfile", "setxattr", "symlink", "sync", "truncate", "unlink", "utime",
    "write", "writev",
}  # fmt: skip
_READ_FLAGS = {"O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_PATH", "O_NONBLOCK", "O_NOATIME"}
_PATH_MUTATORS = {
    "chmod", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip

#: module -> what it may do itself, and why that does not break "only store/disk.py changes the store".
MAY_MUTATE = {
    "adapter/store/disk.py": {"*"},
    # Lock files hold no data. The probe for working locks is made and removed before the store is open.
    "adapter/store/locks.py": {"os.open", "os.unlink"},
    # SQLite writes its own file; no other module opens the index.
    "adapter/store/index.py": {"sqlite3.connect"},
    # A database in memory, to compare with.
    "adapter/store/queries/schema.py": {"sqlite3.connect"},
    # The same for a cache that can be rebuilt.
    "adapter/store/queries/recent_marks.py": {"sqlite3.connect"},
    "adapter/store/queries/text_index.py": {"sqlite3.connect"},
    # Buffered writing to a descriptor that disk.open_new made and announced.
    "adapter/store/snapshots.py": {"open"},
    # A staged file becomes read-only through the descriptor that disk.open_new made.
    "adapter/transport/staging.py": {"os.fchmod"},
    # Exports are written outside the store.
    "adapter/exchange/files.py": {
        "open",
        "os.makedirs",
        "os.mkdir",
        "os.open",
        "os.rename",
        "os.sync",
        "os.unlink",
        "os.utime",
    },
    # Nothing is changed: standard streams that are closed become /dev/null.
    "adapter/cli/__init__.py": {"os.fdopen", "os.open"},
    # Unix sockets of listeners, beside the store.
    "adapter/net/endpoints.py": {"os.unlink"},
    # Backups, and stores that are being restored; never below the root of a store in use.
    "adapter/backup/writer.py": {
        "open",
        "os.fchmod",
        "os.fsync",
        "os.link",
        "os.makedirs",
        "os.mkdir",
        "os.open",
        "os.rename",
        "os.sendfile",
        "os.symlink",
        "os.unlink",
        "os.utime",
        "shutil",
    },
    # The copy of the index in a backup.
    "adapter/backup/create.py": {"sqlite3.connect"},
    "adapter/backup/verify.py": {"sqlite3.connect"},
    # The demo's certificate, beside its store, which gets its name when it is whole.
    "adapter/demo/certificate_authority.py": {"open", "os.makedirs", "os.open"},
    "adapter/demo/store.py": {"os.makedirs", "os.rename", "shutil"},
    # The root of a new store, before it is one.
    "adapter/transport/transport.py": {"os.makedirs"},
}


def mutations(module: str, source: str) -> list[str]:
    """System calls that change files, made anywhere but in ``store/disk.py``."""
    tree = _tree(source)
    imported = set(_imports(tree, for_types=False))
    uses_pathlib = any(name == "pathlib" for name, _ in imported)
    bad = [f"os.{name}" for module_name, name in imported if module_name == "os" and name in _OS_MUTATORS]
    bad += [name for name, _ in imported if name == "shutil"]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = _dotted(call.func)
        method = name.rpartition(".")[2]
        if name.startswith("os.") and method in _OS_MUTATORS:
            bad.append(name)
        elif name == "os.open":
            flags = {_dotted(node).removeprefix("os.") for node in ast.walk(call.args[1])} - {"os", "?"}
            if not flags <= _READ_FLAGS:
                bad.append(name)
        elif name in ("open", "os.fdopen", "io.open"):
            mode = (
                call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "mode"), None)
            )
            if mode is not None and (not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+")):
                bad.append(name)
        elif name == "sqlite3.connect":
            bad.append(name)
        elif uses_pathlib and method in _PATH_MUTATORS:
            bad.append(f"Path.{method}")
    allowed = MAY_MUTATE.get(module, set())
    return [] if "*" in allowed else sorted(set(bad) - allowed)


def _disk_mutators() -> set[str]:
    """The functions of ``disk`` that announce a step, directly or through one another."""
    functions = [node for node in ast.parse(_source("adapter/store/disk.py")).body if isinstance(node, ast.FunctionDef)]
    called = {
        function.name: {_dotted(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        for function in functions
    }
    mutators = {"step", "write_all", "os.open"}
    while more := {name for name, calls in called.items() if calls & (mutators - {"os.open"})} - mutators:
        mutators |= more
    return mutators - {"os.open"}


_MAY_CALL_DISK = (
    "adapter/store/",
    "adapter/transport/",
    "adapter/maintenance/",
    "adapter/accounts/credentials.py",  # a file of its own below the root, under its own lock
    "adapter/accounts/login_records.py",  # the same directory, under the same lock
)


def foreign_disk_calls(module: str, source: str) -> list[str]:
    """Mutating functions of ``disk`` used outside the store, the transport and maintenance."""
    if module.startswith(_MAY_CALL_DISK):
        return []
    tree = _tree(source)
    mutators = _disk_mutators()
    bad = [name for m, name in _imports(tree, for_types=False) if m == "adapter.store.disk" and name in mutators]
    uses = [_dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return bad + [use for use in uses if use.startswith("disk.") and use.removeprefix("disk.") in mutators]


#: Names that mean nothing but a place in the store; and words that may also name a table, a field or a key.
_PLACES = {
    "protocol-version.txt", "index.sqlite", "mailboxes", "snapshots", "staging", "locks", "addresses", "maintenance",
    "index-backups", "quarantine", "removing", "checkpoint.json", "manifest.json", "index.lock", "service.lock",
    "offline.lock", ".mailbox", ".name",
}  # fmt: skip
_WORDS = {"messages", "attachments", "journal", "credentials", "passwd", "offline"}
_MAY_NAME_PLACES = {
    "adapter/store/layout.py": _PLACES | _WORDS,
    "adapter/store/snapshots.py": {"messages", "attachments"},  # tables
    "adapter/cli/__init__.py": {"maintenance"},  # a command
    "adapter/cli/store.py": {"maintenance"},  # a reason
    # The kernel's view of processes and locks, not the store's.
    "adapter/store/locks.py": {"/proc/locks", "f-string with /"},
}
_OF_THE_STORE = ("adapter/store/", "adapter/transport/")


def path_building(module: str, source: str) -> list[str]:
    """Names of places in the store, or paths put together, outside ``store/layout.py``."""
    if module == "adapter/store/layout.py":
        return []
    tree = _tree(source)
    documentation = _docstrings(tree)
    bad = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            levels = set(node.value.split("/"))
            if node.value in _PLACES or (len(levels) > 1 and " " not in node.value and levels & (_PLACES | _WORDS)):
                bad.append(node.value)
        elif isinstance(node, ast.Tuple | ast.List):
            bad += [item.value for item in node.elts if isinstance(item, ast.Constant) and item.value in _WORDS]
        if not module.startswith(_OF_THE_STORE):
            continue
        if isinstance(node, ast.JoinedStr):
            bad += ["f-string with /" for left, right in zip(node.values, node.values[1:]) if _is_joint(left, right)]
        elif isinstance(node, ast.Call):
            called = _dotted(node.func)
            if called.startswith("os.path.") or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "join"
                and isinstance(node.func.value, ast.Constant)
                and node.func.value.value == "/"
            ):
                bad.append(f"{called}()")
    return sorted(set(bad) - _MAY_NAME_PLACES.get(module, set()))


def _is_joint(left: ast.expr, right: ast.expr) -> bool:
    """Return whether two parts of an f-string meet in a slash: ``{root}/…`` or ``…/{name}``."""
    return (
        isinstance(left, ast.FormattedValue)
        and isinstance(right, ast.Constant)
        and str(right.value).startswith("/")
        and " " not in str(right.value)
    )


def foreign_filelock(module: str, source: str) -> list[str]:
    """One module knows how locks are taken."""
    if module == "adapter/store/locks.py":
        return []
    return [name for name, _ in _imports(_tree(source), for_types=True) if name.split(".")[0] == "filelock"]


#: Two that hand a reader out, and one that reads a spool.
_READING_OTHERWISE = {"adapter/store/index.py", "adapter/transport/transport.py", "adapter/transport/staging.py"}
#: These have the store, or its writing transaction, to themselves.
_ALONE = ("adapter/maintenance/", "adapter/transport/apply/")
_LONG_WORK = {"commit", "file", "octets", "result", "run", "section", "sleep", "stage", "stream", "submit"}


def slow_readers(module: str, source: str) -> list[str]:
    """An open cursor or read transaction keeps writers out: rows are fetched whole, and a block only asks."""
    tree = _tree(source)
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    bad = ["rows are not fetched" for rows in loops if isinstance(rows, ast.Call) and _is_call_of(rows, {"execute"})]
    for block in (node for node in ast.walk(tree) if isinstance(node, ast.With)):
        opened = [item.context_expr for item in block.items]
        if module in _READING_OTHERWISE or not any(_is_call_of(each, {"reading"}) for each in opened):
            continue
        inside = [node for statement in block.body for node in ast.walk(statement)]
        bad += ["waits" for node in inside if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom)]
        bad += ["works" for node in inside if _is_call_of(node, _LONG_WORK)]
    return bad


def _is_call_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


def too_long(module: str, source: str) -> list[str]:
    lines = source.count("\n")
    return [f"{lines} lines"] if lines > MAX_LINES else []


def undocumented(module: str, source: str) -> list[str]:
    return [] if not source.strip() or ast.get_docstring(_tree(source)) else ["no docstring"]


def assigned_states(module: str, source: str) -> list[str]:
    """The state of an IMAP session changes by events of ``protocol/imap/states.py``; nothing else assigns it."""
    if module == "protocol/imap/states.py":
        return []
    tree = _tree(source)
    bad = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = [inner for target in node.targets for inner in ast.walk(target)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        else:
            continue
        stored = [each for each in targets if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
        named = [_dotted(each) for each in stored if each.attr in ("_state", "state")]
        # The state of the framer is another machine.
        innocent = {"protocol/imap/wire/framer.py": "self._state"}
        bad += [name for name in named if name != innocent.get(module)]
    return bad


_SQL = re.compile(
    r"""\s*(?:
        SELECT\b[^;]*\b(?:FROM|EXISTS)\b | SELECT\ \d | WITH\ \w+[^;]*\bAS\b
        | INSERT\ (?:OR\ \w+\ )?INTO\b | REPLACE\ INTO\b | DELETE\ FROM\b
        | UPDATE\ (?:OR\ \w+\ )?\S+\ (?:AS\ \w+\ )?SET\b
        | CREATE\ (?:(?:TEMP|TEMPORARY|VIRTUAL|UNIQUE)\ )?(?:TABLE|INDEX|TRIGGER|VIEW)\b
        | DROP\ (?:TABLE|INDEX|TRIGGER|VIEW)\b | ALTER\ TABLE\b
    )""",
    re.VERBOSE,
)
#: Statements about a connection itself: no table is named.
_SQL_OF_CONNECTIONS = re.compile(
    r"\s*(?:PRAGMA \w|(?:ATTACH|DETACH) \w|(?:BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|VACUUM|ANALYZE)(?: \w+)*\Z)"
)
_MAY_CONTAIN_SQL = ("adapter/store/queries/", "adapter/maintenance/")
#: It opens the connections of the index, and begins and ends transactions: nothing in these statements names a table.
_OPENS_CONNECTIONS = "adapter/store/index.py"


def foreign_sql(module: str, source: str) -> list[str]:
    """SQL outside ``store/queries/`` and maintenance."""
    if module.startswith(_MAY_CONTAIN_SQL):
        return []
    tree = _tree(source)
    documentation = _docstrings(tree)
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]
    bad = [text for text in texts if _SQL.match(text)]
    if module != _OPENS_CONNECTIONS:
        bad += [text for text in texts if _SQL_OF_CONNECTIONS.match(text)]
    return [" ".join(text.split())[:60] for text in bad]


_EFFECT_NAMES = {"effect", "effects", "record"}


def untyped_effects(module: str, source: str) -> list[str]:
    """Effects or records read as dictionaries or lists, and effects made as dictionaries."""
    bad = []
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key, name = node.slice.value, _dotted(node.value).rpartition(".")[2]
            if (isinstance(key, str) and name in _EFFECT_NAMES) or (isinstance(key, int) and name == "effect"):
                bad.append(f"{name}[{key!r}]")
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("effect.get", "effect.items"):
            bad.append(f"{_dotted(node.func)}()")
        elif isinstance(node, ast.Dict):
            bad += ["a dictionary" for key in node.keys if isinstance(key, ast.Constant) and key.value == "do"]
    return bad


_FLAG_BITS = re.compile(r"\bflags\s*(?:&|\||>>)\s*\d|\bflags\s*=\s*[1-9]")


def unnamed_flags(module: str, source: str) -> list[str]:
    """Bits of flags as numbers, in Python or SQL, where ``Flag`` has names for them."""
    if module == "adapter/store/flags.py":
        return []
    tree = _tree(source)
    documentation = _docstrings(tree)
    bad = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr | ast.RShift | ast.LShift):
            names = {_dotted(side).rpartition(".")[2] for side in (node.left, node.right)}
            numbers = [side for side in (node.left, node.right) if isinstance(side, ast.Constant) and side.value != 0]
            bad += [ast.unparse(node) for _ in numbers if "flags" in names]
        elif isinstance(node, ast.keyword) and node.arg == "flags" and isinstance(node.value, ast.Constant):
            bad += [f"flags={node.value.value!r}"] if node.value.value else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            bad += [match[0] for match in _FLAG_BITS.finditer(node.value)]
    return bad


Rule = Callable[[str, str], list[str]]
_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\})\+")


def possessive_groups(module: str, source: str) -> list[str]:
    """Python before 3.11.5, which Debian 12 has, matches ``(?:…)*+`` wrongly; ``(?>(?:…)*)`` says the same."""
    texts = [node.value for node in ast.walk(_tree(source)) if isinstance(node, ast.Constant)]
    patterns = [text.decode("latin-1") if isinstance(text, bytes) else text for text in texts]
    return [text for text in patterns if isinstance(text, str) and _POSSESSIVE_GROUP.search(text)]


_BELOW_THE_CONTRACT = ("adapter.store", "adapter.transport")


def around_the_contract(module: str, source: str) -> list[str]:
    """IMAP handlers reach mail through :mod:`adapter.read_model.interface` alone, so that they run on any store."""
    imported = {name for name, _ in _imports(_tree(source), for_types=True)}
    below = {f"{name}.{each}" for name, each in _imports(_tree(source), for_types=True) if name == "adapter"} | imported
    return sorted(
        name
        for name in below
        if name.startswith(_BELOW_THE_CONTRACT)
        or (name.startswith("adapter.read_model") and name != "adapter.read_model.interface")
    )


RULES: list[tuple[Rule, list[str]]] = [
    (impure_imports, PROTOCOL),
    (mutations, ADAPTER),
    (foreign_disk_calls, ADAPTER),
    (path_building, ADAPTER),
    (foreign_filelock, ADAPTER + PROTOCOL),
    (slow_readers, [module for module in ADAPTER if not module.startswith(_ALONE)]),
    (too_long, ADAPTER + PROTOCOL),
    (undocumented, ADAPTER + PROTOCOL),
    (possessive_groups, ADAPTER + PROTOCOL),
    (foreign_sql, ADAPTER + PROTOCOL),
    (untyped_effects, ADAPTER + TESTS),
    (unnamed_flags, ADAPTER),
    (assigned_states, [module for module in ADAPTER + PROTOCOL if "/imap/" in module]),
    (around_the_contract, [module for module in ADAPTER if module.startswith("adapter/imap/commands/")]),
]


@pytest.mark.parametrize(("rule", "modules"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_the_code_keeps_the_rule(rule: Rule, modules: list[str]) -> None:
    assert modules
    broken = {module: offences for module in modules if (offences := rule(module, _source(module)))}
    assert not broken


def test_no_exception_is_left_over() -> None:
    """Every exception in MAY_MUTATE is used."""
    for module, allowed in MAY_MUTATE.items():
        if "*" not in allowed:
            used = mutations("adapter/other.py", _source(module))
            assert allowed <= set(used), (module, allowed - set(used))


OFFENDERS: list[tuple[Rule, str, str]] = [
    (around_the_contract, "adapter/imap/commands/x.py", "from adapter.store.flags import Flag"),
    (around_the_contract, "adapter/imap/commands/x.py", "from adapter import transport"),
    (around_the_contract, "adapter/imap/commands/x.py", "def f():\n    from adapter.transport import operations as op"),
    (around_the_contract, "adapter/imap/commands/x.py", "from adapter.read_model.mailboxes import MailboxCache"),
    (assigned_states, "adapter/imap/x.py", "session.state = State.SELECTED"),
    (assigned_states, "adapter/imap/x.py", "session._machine._state, self.selected = State.SELECTED, None"),
    (assigned_states, "adapter/imap/session.py", "self.state: State = State.LOGOUT"),
    (possessive_groups, "protocol/x.py", "WORDS = re.compile(rb'(?:[a-z]+ ?)*+')"),
    (impure_imports, "protocol/x.py", "import os"),
    (impure_imports, "protocol/x.py", "from os import path"),
    (impure_imports, "protocol/x.py", "def f():\n    import sqlite3.dbapi2"),
    (impure_imports, "protocol/x.py", "import mmap"),
    (impure_imports, "protocol/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import socket"),
    (impure_imports, "protocol/x.py", "from adapter.store import names"),
    (impure_imports, "protocol/x.py", "text = open('x').read()"),
    (mutations, "adapter/x.py", "import os\nos.rename('a', 'b')"),
    (mutations, "adapter/x.py", "from os import unlink"),
    (mutations, "adapter/x.py", "import os\nos.open('a', os.O_RDONLY | os.O_CREAT)"),
    (mutations, "adapter/x.py", "import os\nos.open('a', FLAGS)"),
    (mutations, "adapter/x.py", "open('a', 'w')"),
    (mutations, "adapter/x.py", "open('a', mode='ab')"),
    (mutations, "adapter/x.py", "open('a', how)"),
    (mutations, "adapter/x.py", "import shutil"),
    (mutations, "adapter/x.py", "from pathlib import Path\nPath('a').write_text('b')"),
    (mutations, "adapter/x.py", "import sqlite3\nsqlite3.connect('a')"),
    (foreign_disk_calls, "adapter/server/x.py", "from adapter.store.disk import rename"),
    (foreign_disk_calls, "adapter/server/x.py", "from adapter.store import disk\ndisk.replace_file(1, 'a', b'')"),
    (path_building, "adapter/transport/x.py", "place = 'mailboxes'"),
    (path_building, "adapter/server/x.py", "place = ('messages', day)"),
    (path_building, "adapter/server/x.py", "place = f'{root}/messages/{day}'"),
    (path_building, "adapter/transport/x.py", "place = f'{root}/{name}'"),
    (path_building, "adapter/transport/x.py", "place = '/'.join(parts)"),
    (path_building, "adapter/transport/x.py", "import os\nos.path.join(a, b)"),
    (foreign_filelock, "adapter/x.py", "from filelock import FileLock"),
    (foreign_filelock, "adapter/x.py", "import filelock"),
    (slow_readers, "adapter/x.py", "for row in connection.execute('SELECT 1'):\n    pass"),
    (slow_readers, "adapter/x.py", "async def f():\n    with store.reading() as c:\n        await g(c)"),
    (slow_readers, "adapter/x.py", "with store.reading() as c:\n    store.run(change(c))"),
    (too_long, "adapter/x.py", "x = 1\n" * (MAX_LINES + 1)),
    (undocumented, "adapter/x.py", "x = 1"),
    (foreign_sql, "adapter/x.py", "SQL = 'SELECT uid FROM mailbox_state WHERE folder_id = ?'"),
    (foreign_sql, "adapter/x.py", "c.execute('SELECT 1 WHERE EXISTS (SELECT * FROM t)')"),
    (foreign_sql, "adapter/x.py", "c.execute(f'INSERT OR IGNORE INTO {table} VALUES (?)', (1,))"),
    (foreign_sql, "adapter/x.py", "c.execute(f'DELETE FROM {table}')"),
    (foreign_sql, "adapter/x.py", "SQL = '\\nUPDATE folders SET name = ?'"),
    (foreign_sql, "adapter/x.py", "SQL = '\\nCREATE TABLE x (y)'"),
    (foreign_sql, "protocol/x.py", "SQL = 'WITH a AS (SELECT 1) SELECT * FROM a'"),
    (foreign_sql, "adapter/x.py", "c.execute('BEGIN IMMEDIATE')"),
    (foreign_sql, "adapter/x.py", "c.execute('PRAGMA synchronous=OFF')"),
    (foreign_sql, "adapter/store/index.py", "c.execute('SELECT value FROM meta')"),
    (untyped_effects, "adapter/x.py", "effect['folder']"),
    (untyped_effects, "adapter/x.py", "name = record['op']"),
    (untyped_effects, "adapter/x.py", "effect[1]"),
    (untyped_effects, "adapter/x.py", "effect.get('to')"),
    (untyped_effects, "adapter/x.py", "plan.emit({'do': 'folder', 'name': name})"),
    (unnamed_flags, "adapter/x.py", "row.flags & 1"),
    (unnamed_flags, "adapter/x.py", "unseen = not 8 & flags"),
    (unnamed_flags, "adapter/x.py", "append(flags=5)"),
    (unnamed_flags, "adapter/store/queries/x.py", "SQL = 'SELECT total(1 - (s.flags & 1)) FROM mailbox_state s'"),
    (unnamed_flags, "adapter/store/queries/x.py", "SQL = 'SELECT (s.flags >> 3) & 1 FROM mailbox_state s'"),
]


@pytest.mark.parametrize(("rule", "module", "source"), OFFENDERS)
def test_the_rule_catches_an_offender(rule: Rule, module: str, source: str) -> None:
    assert rule(module, source)


INNOCENT: list[tuple[Rule, str, str]] = [
    (around_the_contract, "adapter/imap/commands/x.py", "from adapter.read_model.interface import Flag"),
    (assigned_states, "adapter/imap/x.py", "session.apply(StateEvent.SELECTED)\nstate = session.state"),
    (possessive_groups, "protocol/x.py", "WORDS = re.compile(r'(?>(?:[a-z]++ ?)*)\\)++')"),
    (impure_imports, "protocol/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mmap"),
    (mutations, "adapter/x.py", "import os\nos.open('a', os.O_RDONLY | os.O_NOFOLLOW)\nopen('a')\nopen('a', 'rb')"),
    (mutations, "adapter/x.py", "'a'.replace('b', 'c')"),
    (foreign_disk_calls, "adapter/server/x.py", "from adapter.store import disk\ndisk.read_file(1, 'a')"),
    (path_building, "adapter/transport/x.py", "tables['messages']\nsay(f'{done} of {total} messages')"),
    (path_building, "adapter/transport/x.py", '"""About messages/ and mailboxes."""'),
    (slow_readers, "adapter/x.py", "with store.reading() as c:\n    rows = queries.rows(c)\nstore.run(change(rows))"),
    (undocumented, "adapter/x/__init__.py", ""),
    (
        foreign_sql,
        "adapter/x.py",
        "'''SELECT a FROM b.'''\nclient.run('SELECT INBOX', 'DELETE Sent', f'EXAMINE {name}')",
    ),
    (foreign_sql, "adapter/x.py", "say('commit failed')\nsay('select a folder from the list')"),
    (foreign_sql, "adapter/store/queries/x.py", "SQL = 'SELECT uid FROM mailbox_state'"),
    (foreign_sql, "adapter/store/index.py", "c.execute('BEGIN IMMEDIATE')\nc.execute('PRAGMA cache_size=-1')"),
    (untyped_effects, "adapter/x.py", "match effect:\n    case Project():\n        first = effect.rows[0].uid"),
    (unnamed_flags, "adapter/x.py", "row.flags & Flag.READ\nappend(flags=0)\nflags & ~Flag.DRAFT | give"),
    (unnamed_flags, "adapter/x.py", "SQL = f'SELECT 1 - (s.flags & {Flag.READ:d}) FROM mailbox_state s'"),
]


@pytest.mark.parametrize(("rule", "module", "source"), INNOCENT)
def test_the_rule_lets_the_innocent_pass(rule: Rule, module: str, source: str) -> None:

    assert rule(module, source) == []


def test_the_mutating_functions_of_disk_are_found() -> None:
    mutators = _disk_mutators()
    assert {"rename", "link", "symlink", "unlink", "write_new", "write_at", "truncate", "replace_file"} <= mutators
    assert not {"read_file", "open_read", "exists", "boot_id"} & mutators


# --- layers: rules about all modules together --------------------------------------------------------------------

#: Packages from the bottom to the top: a package imports only those before it, for types as well.
LAYERS = (
    "protocol", "observability", "net", "config", "content", "store", "transport", "accounts", "search", "read_model",
    "sessions", "smtp", "imap", "relay", "mirror", "hooks", "exchange", "api", "agents", "maintenance", "admin",
    "backup", "doctor", "server", "demo", "cli",
)  # fmt: skip

MAX_MODULES = 16

Sources = Mapping[str, str]


def _package(name: str) -> str:
    """The layer of a dotted module name; "" for modules of others."""
    first, _, rest = name.partition(".")
    return first if first == "protocol" else rest.partition(".")[0] if first == "adapter" else ""


def _dotted_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported_modules(source: str, modules: Collection[str], *, for_types: bool) -> set[str]:
    """The modules of ours that a source imports, wherever in it the import is."""
    imported = set()
    for module, name in _imports(_tree(source), for_types=for_types):
        full = f"{module}.{name}" if name else module
        imported.add(full if full in modules else module)
    return {name for name in imported if _package(name)}


def upward_imports(sources: Sources) -> list[tuple[str, str]]:
    """Imports of a package that is not below the importing one: (module, package)."""
    modules = {_dotted_name(path) for path in sources}
    upward = []
    for path, source in sources.items():
        layer = _package(_dotted_name(path))
        for name in _imported_modules(source, modules, for_types=True):
            package = _package(name)
            if layer and package != layer and LAYERS.index(package) > LAYERS.index(layer):
                upward.append((path, package))
    return sorted(set(upward))


def large_folders(sources: Iterable[str]) -> list[str]:
    """Folders with more modules than a reader can take in."""
    modules = (path for path in sources if not path.endswith(("/__init__.py", "/conftest.py")))
    folders = Counter(path.rpartition("/")[0] for path in modules)
    return sorted(folder for folder, count in folders.items() if count > MAX_MODULES)


def import_cycles(sources: Sources) -> list[set[str]]:
    """Modules that import one another in a circle, imports for types aside."""
    modules = {_dotted_name(path) for path in sources}
    graph = {
        (name := _dotted_name(path)): _imported_modules(source, modules, for_types=False) & modules - {name}
        for path, source in sources.items()
    }
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: imported - leaves for name, imported in graph.items() if name not in leaves}
    # All that remain lead to a cycle. Drop those that no module imports: only cycles and paths between them remain.
    while roots := graph.keys() - set().union(*graph.values()):
        graph = {name: imported for name, imported in graph.items() if name not in roots}
    return [set(graph)] if graph else []


def _all_sources() -> dict[str, str]:
    return {module: _source(module) for module in ADAPTER + PROTOCOL}


def test_packages_import_only_those_below_them() -> None:
    unknown = {_package(_dotted_name(module)) for module in ADAPTER} - {*LAYERS, ""}
    assert not unknown, "give each package its place in LAYERS"
    assert upward_imports(_all_sources()) == []


def test_folders_are_small() -> None:
    assert large_folders(ADAPTER + PROTOCOL + _modules("tests")) == []


def test_no_modules_import_each_other() -> None:
    assert import_cycles(_all_sources()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from adapter.smtp.session import SmtpSession",
        "import adapter.cli.serve",
        "from adapter.server import serve",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from adapter.server.serve import run",
        "def f():\n    from adapter.server.serve import run",
    ],
)
def test_upward_import_is_caught(source: str) -> None:
    assert upward_imports({"adapter/store/x.py": source})
    assert upward_imports({"protocol/x.py": source})
    assert not upward_imports({"adapter/cli/x.py": source})


def test_large_folder_is_caught() -> None:
    modules = {f"adapter/x/{number}.py": "" for number in range(MAX_MODULES)}
    assert large_folders({**modules, "adapter/x/__init__.py": "", "adapter/x/y/z.py": ""}) == []
    assert large_folders({**modules, "adapter/x/conftest.py": ""}) == []
    assert large_folders({**modules, "adapter/x/one_more.py": ""}) == ["adapter/x"]


def test_import_cycle_is_caught() -> None:
    a, b = "from adapter.x.b import f", "def f():\n    from adapter.x import a"
    assert import_cycles({"adapter/x/a.py": a, "adapter/x/b.py": b, "adapter/x/c.py": a}) == [
        {"adapter.x.a", "adapter.x.b"}
    ]
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from adapter.x.a import T"
    assert import_cycles({"adapter/x/a.py": a, "adapter/x/b.py": types}) == []


# --- the overviews ---------------------------------------------------------------------------------------------------


def _listing(folder: str) -> str:
    """The first code block of a README: what is where."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1]


@pytest.mark.parametrize("folder", ["adapter", "adapter/server"])
def test_the_readme_names_every_module(folder: str) -> None:
    """The listing has every module and no others, so that a reader finds the file of a subject."""
    listing = _listing(folder)
    modules = [path for path in (ROOT / folder).glob("*.py") if path.stem != "__init__"]
    packages = [path.parent for path in (ROOT / folder).glob("*/__init__.py")]
    assert not {path.stem for path in modules} - set(re.findall(r"\w+", listing))
    assert not {path.name for path in packages} - set(re.findall(r"(\w+)/", listing))
    existing = {path.stem for path in (*modules, *packages)}
    first = re.findall(r"^(\w+)(?:\.py|/)?\b", listing, re.MULTILINE)
    assert not set(first) - existing


def test_packages_are_listed_in_layer_order() -> None:
    listed = re.findall(r"^(\w+)/", _listing("adapter"), re.MULTILINE)
    assert listed == [layer for layer in LAYERS if layer in listed]


def test_flows_of_the_readme_name_existing_modules_in_at_most_20_lines() -> None:
    text = (
        (ROOT / "adapter" / "README.md").read_text(encoding="utf-8").partition("## Four flows")[2].partition("\n## ")[0]
    )
    flows = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(flows) == 4
    modules = {module.removeprefix("adapter/") for module in ADAPTER} | set(PROTOCOL)
    for flow in flows:
        lines = flow.splitlines()
        assert len(lines) <= 20
        assert not {line.split()[0] for line in lines} - modules
        mentioned = re.findall(r"[\w/]+\.py", flow)
        assert not [name for name in mentioned if not any(f"/{module}".endswith(f"/{name}") for module in modules)]


def test_readme_of_protocol_lists_each_module_once_below_its_package() -> None:
    listed: list[str] = []
    package: list[str] = []
    for indent, name, kind in re.findall(r"^( *)(\w+)(/|\.py)", _listing("protocol"), re.MULTILINE):
        package = package[: len(indent) // 2]
        if kind == "/":
            package.append(name)
        else:
            listed.append("/".join(["protocol", *package, f"{name}.py"]))
    assert sorted(listed) == [module for module in PROTOCOL if not module.endswith("__init__.py")]
