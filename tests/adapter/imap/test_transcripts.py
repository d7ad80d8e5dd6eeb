r"""Transcripts: every file of ``tests/imap_transcripts`` is replayed and must produce the recorded responses.

::

    # a comment
    @ set imap.message_limit = 3        a setting of the server, before the first line
    @ deliver ada@example.test Subject  mail comes in from outside
    C: a LOGIN ada@example.test secret  the client sends (and a line end)
    C| some octets                      the client sends (and no line end); \r, \n and \xNN are escapes, and «…» is a
                                        non-synchronising literal (its size is added)
    S: a OK {*}                         the server sends; {*} matches anything
    S: * OK [UIDVALIDITY {v}] {*}       {v} matches anything the first time, then the same; also in C:
    B C: …                              another session, which is connected when its name is first used

The greeting of a session is read when it connects. After the last line no session may have received more.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adapter.config.schema import Settings, Tls
from adapter.imap.commands import HANDLERS
from adapter.store import disk, layout
from adapter.store.disk import Directories
from adapter.transport import operations as op
from protocol.imap.capabilities import CAPABILITIES
from protocol.imap.commands.registry import COMMANDS
from tests.support.certificates import make_certificate
from tests.support.imapd import ImapClient, Running, make_store, serving
from tests.support.mailboxes import notified
from tests.support.paths import REPOSITORY, TESTS
from tests.support.waiting import until

TRANSCRIPTS = TESTS / "imap_transcripts"
_LINE = re.compile(r"(?:(?P<session>[A-Z]) )?(?P<who>[CS])(?P<how>[:|]) ?(?P<text>.*)")
_HOLE = re.compile(r"\{(\*|[a-z][a-z0-9]*)\}")
_ESCAPE = re.compile(rb"\\(?:r|n|\\|x([0-9a-f]{2}))")
_LITERAL = re.compile("«(.*?)»".encode(), re.DOTALL)
#: Comes whenever nothing else did for a while, which depends on how busy the machine is.
_KEEP_ALIVE = "* OK Still here"
_PLAIN_ESCAPES = {b"\\r": b"\r", b"\\n": b"\n", b"\\\\": b"\\"}


def _files() -> list[Path]:
    return sorted(TRANSCRIPTS.glob("*.txt"))


def _unescape(text: str) -> bytes:
    octets = _ESCAPE.sub(
        lambda match: _PLAIN_ESCAPES[match[0]] if match[1] is None else bytes([int(match[1], 16)]), text.encode()
    )
    return _LITERAL.sub(lambda match: b"{%d+}\r\n%b" % (len(match[1]), match[1]), octets)


class Script:
    """The replay of one transcript."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._sessions: dict[str, ImapClient] = {}
        self._variables: dict[str, str] = {}

    async def play(self, lines: Iterator[tuple[int, str]]) -> None:
        for number, line in lines:
            try:
                await self._play_line(line)
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"line {number}: {line}\n{error or 'the server sent nothing'}") from None
        for name, client in self._sessions.items():
            assert not client.leftover, f"session {name} received more: {client.leftover!r}"
            await client.close()

    async def _play_line(self, line: str) -> None:
        if line.startswith("@ "):
            await self._direct(shlex.split(line[2:]))
            return
        match = _LINE.fullmatch(line)
        assert match, "not a line of a transcript"
        client = await self._session(match["session"] or "A")
        text = match["text"]
        if match["who"] == "C":
            octets = _unescape(self._fill(text)) if match["how"] == "|" else self._fill(text).encode() + b"\r\n"
            client.send(octets)
        else:
            received = await client.line()
            while received.rstrip() == _KEEP_ALIVE.encode() and text != _KEEP_ALIVE:
                received = await client.line()
            self._compare(text, received.decode("utf-8", "backslashreplace"))

    async def _session(self, name: str) -> ImapClient:
        if name not in self._sessions:
            self._sessions[name] = await self._server.connect()
            assert (await self._sessions[name].line()).startswith(b"* OK [CAPABILITY IMAP4rev1 ")
        return self._sessions[name]

    def _fill(self, text: str) -> str:
        return _HOLE.sub(lambda hole: self._variables.get(hole[1], hole[0]), text)

    def _compare(self, expected: str, received: str) -> None:
        pattern, position, names = "", 0, []
        for hole in _HOLE.finditer(expected):
            pattern += re.escape(expected[position : hole.start()])
            position = hole.end()
            if hole[1] in self._variables:
                pattern += re.escape(self._variables[hole[1]])
            elif hole[1] == "*":
                pattern += ".*"
            else:
                pattern += "(.+?)"
                names.append(hole[1])
        pattern += re.escape(expected[position:])
        assert received.endswith("\r\n"), f"received: {received!r}"
        match = re.fullmatch(pattern, received[:-2], re.DOTALL)
        assert match, f"received: {received[:-2]}"
        self._variables.update(zip(names, match.groups(), strict=True))

    async def _direct(self, words: list[str]) -> None:
        match words:
            case ["connect", name, "tls"]:
                self._sessions[name] = await self._server.connect(implicit_tls=True)
                assert (await self._sessions[name].line()).startswith(b"* OK [CAPABILITY IMAP4rev1 ")
            case ["connect", name, "refused"]:
                self._sessions[name] = await self._server.connect()
            case ["tls", name]:
                await self._sessions[name].start_tls()
            case ["compress", name]:
                self._sessions[name].start_compression()
            case ["plain", name]:
                self._sessions[name].end_compression()
            case ["closed", name]:
                assert await self._sessions[name].line() == b""
                await self._sessions.pop(name).close()
            case ["close", name]:
                await self._sessions.pop(name).close()
            case ["silence", name, seconds]:
                await asyncio.sleep(float(seconds))
                assert not self._sessions[name].leftover, self._sessions[name].leftover
            case ["deliver", address, subject, *body]:
                octets = f"From: bob@example.test\r\nTo: {address}\r\nSubject: {subject}\r\n\r\n{' '.join(body)}\r\n"
                await notified(self._server.transport, partial(self._deliver, address, octets.encode()))
            case ["flag", address, folder, uid, flags]:
                await notified(self._server.transport, partial(self._flag, address, folder, int(uid), int(flags)))
            case ["maintenance", state]:
                await asyncio.to_thread(self._maintenance, state == "on")
                await until(lambda: (self._server.services.store is None) == (state == "on"))
            case _:
                raise AssertionError(f"unknown direction {words}")

    def _deliver(self, address: str, octets: bytes) -> None:
        transport = self._server.transport
        transport.run(op.Deliver(transport.stage(octets), "bob@example.test", [address]))

    def _flag(self, address: str, folder: str, uid: int, flags: int) -> None:
        from tests.support.stores import folder as find

        transport = self._server.transport
        folder_id = find(transport, folder, address).id
        transport.run(op.ChangeFlags(address, folder_id, [uid], "add", flags))

    def _maintenance(self, on: bool) -> None:
        directories = Directories(self._server.keeper._root)
        try:
            with directories.stable(layout.MAINTENANCE) as place:
                if on:
                    disk.replace_file(place, layout.OFFLINE_MARKER, b"test\n")
                else:
                    disk.unlink(place, layout.OFFLINE_MARKER)
        finally:
            directories.close()


def _settings(lines: list[str], certificate: Tls) -> Settings:
    settings = replace(Settings(), tls=certificate)
    for line in lines:
        match = re.fullmatch(r"@ set ([a-z]+)\.([a-z_]+) = (.+)", line)
        if match:
            section = getattr(settings, match[1])
            assert match[2] in {field.name for field in fields(section)}
            value: Any = {"true": True, "false": False}.get(match[3], match[3])
            if isinstance(value, str):
                value = float(value) if "." in value else int(value)
            changed: dict[str, Any] = {match[1]: replace(section, **{match[2]: value})}
            settings = replace(settings, **changed)
    return settings


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("path", _files(), ids=lambda path: path.stem)
async def test_transcript(path: Path, tmp_path: Path, certificate: Tls) -> None:
    text = (await asyncio.to_thread(path.read_text, encoding="utf-8")).splitlines()
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, "ada@example.test", "bob@example.test")
    async with serving(root, _settings(text, certificate)) as server:
        lines = (
            (number, line)
            for number, line in enumerate(text, 1)
            if line.strip() and not line.startswith(("#", "@ set "))
        )
        await Script(server).play(lines)


_COMMAND = re.compile(r"(?:[A-Z] )?C[:|] [^ ]+ ((?:UID )?[A-Z]+)", re.IGNORECASE)


def test_every_command_is_in_a_transcript() -> None:
    commands = set()
    for path in _files():
        for line in path.read_text(encoding="utf-8").replace("\\r\\n", "\nC: ").splitlines():
            if match := _COMMAND.match(line):
                commands.add(match[1].upper())
    assert set(COMMANDS) - commands == set()


_REFUSED = re.compile(r"(?:[A-Z] )?S: [A-Za-z0-9.]+ (?:NO|BAD) ")


def test_recorded_clients_are_not_refused() -> None:
    """The exception is mutt's COPY into a mailbox that it then creates."""
    refused = {
        path.stem: [line for line in path.read_text(encoding="utf-8").splitlines() if _REFUSED.match(line)]
        for path in TRANSCRIPTS.glob("client_*.txt")
    }
    assert {"client_evolution", "client_roundcube", "client_thunderbird"} <= refused.keys()
    assert {name: lines for name, lines in refused.items() if lines} == {"client_mutt": ["S: a0008 NO [TRYCREATE] {*}"]}


def test_every_handler_names_its_rfc() -> None:
    bare = [handler.__name__ for handler in HANDLERS.values() if "RFC" not in (inspect.getcomments(handler) or "")]
    assert bare == []


def test_every_capability_is_used() -> None:
    """Each occurs by name, or by a keyword that it adds."""
    keywords = {
        "IMAP4REV1": "SELECT", "SASL-IR": "AUTHENTICATE PLAIN AG", "LITERAL+": "«", "LITERAL-": "",
        "CHILDREN": "HasChildren", "UIDPLUS": "APPENDUID", "MULTIAPPEND": "» «", "SEARCHRES": "$", "WITHIN": "YOUNGER",
        "SORT=DISPLAY": "DISPLAYFROM", "ESORT": "SORT RETURN",
        "THREAD=REFERENCES": "THREAD REFERENCES", "THREAD=ORDEREDSUBJECT": "THREAD ORDEREDSUBJECT",
        "LIST-EXTENDED": "RECURSIVEMATCH", "LIST-STATUS": "RETURN (STATUS", "CREATE-SPECIAL-USE": "(USE (",
        "STATUS=SIZE": "SIZE", "OBJECTID": "EMAILID", "UTF8=ACCEPT": "ENABLE UTF8", "INPROGRESS": "INPROGRESS",
        "COMPRESS=DEFLATE": "COMPRESS DEFLATE", "AUTH=SCRAM-SHA-256": "", "AUTH=OAUTHBEARER": "", "AUTH=XOAUTH2": "",
        "AUTH=PLAIN": "AUTHENTICATE PLAIN", "AUTH=LOGIN": "AUTHENTICATE LOGIN", "LOGINDISABLED": "",
        "APPENDLIMIT={APPEND_LIMIT}": "TOOBIG", "MESSAGELIMIT={MESSAGE_LIMIT}": "MESSAGELIMIT",
        "QUOTA=RES-STORAGE": "STORAGE", "QUOTA=RES-MESSAGE": "MESSAGE ",
    }  # fmt: skip
    text = "\n".join(path.read_text(encoding="utf-8") for path in _files()).upper()
    offered = [capability.name.upper() for capability in CAPABILITIES if capability.offer.words != "not yet"]
    assert [name for name in offered if keywords.get(name, name).upper() not in text] == []


def test_compatibility_list_names_existing_tests() -> None:
    root = REPOSITORY
    written = (root / "protocol/imap/COMPATIBILITY.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[^`]+)`", written))
    assert named
    assert {name for name in named if not (root / name).is_file()} == set()
