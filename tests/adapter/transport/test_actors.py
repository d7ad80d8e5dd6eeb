"""The audit trail: every record in the journal names the actor that caused it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from click.testing import CliRunner

from adapter.api import Store
from adapter.cli import main
from adapter.config.loader import Seconds
from adapter.config.schema import HookSettings
from adapter.store.effects import OPERATOR, Actor
from adapter.transport import operations as op
from adapter.transport.commit_queue import CommitQueue
from adapter.transport.transport import PROGRAM, Transport
from protocol.errors import MailError
from tests.support.hooks import running_hooks
from tests.support.imapd import make_store, serving
from tests.support.messages import message
from tests.support.store.journals import actors
from tests.support.stores import ADA, BOB, deliver, new_store

EVE = "eve@example.test"


def test_actor_of_an_operation_is_the_one_given_or_that_of_the_open_store(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with new_store(root, ADA) as store:
        store.run(op.Subscribe(ADA, "one"))
    retention = Actor("", "retention")
    with Transport.open(root, actor=Actor("", "server")) as store:
        store.run(op.Subscribe(ADA, "two"))
        store.run(op.Subscribe(ADA, "three"), Actor(ADA, "imap"))
        operations = [op.Subscribe(ADA, "four"), op.Subscribe(ADA, "five")]
        store.commit_all(operations, [None, Actor(BOB, "imap")])
        store.run(op.Expunge(ADA, _flagged_deleted(store)))
        assert store.run(op.Collect(2**40), retention) == 1
    assert actors(root, "subscribe")[-5:] == [
        PROGRAM,
        Actor("", "server"),
        Actor(ADA, "imap"),
        Actor("", "server"),
        Actor(BOB, "imap"),
    ]
    assert actors(root, "collect") == [retention]


def _flagged_deleted(store: Transport) -> int:
    """Deliver a message and flag it; return its folder."""
    placed = deliver(store, ADA).recipients[ADA]
    assert not isinstance(placed, MailError)
    store.run(op.ChangeFlags(ADA, placed.folder, [placed.uid], "add", 8))
    return placed.folder


async def test_operations_in_one_batch_keep_their_actors(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with new_store(root, ADA) as store:
        commits = CommitQueue(store, 1)
        chosen = [Actor("", "lmtp"), Actor(ADA, "submission"), None]

        def prepare() -> op.Deliver:
            return op.Deliver(store.stage(message()), "", [ADA])

        await asyncio.gather(*(commits.run(prepare, 1000, actor) for actor in chosen))
        await asyncio.to_thread(commits.close)
    assert set(actors(root, "deliver")) == {Actor("", "lmtp"), Actor(ADA, "submission"), PROGRAM}


async def test_imap_session_records_its_account(tmp_path: Path) -> None:
    root = tmp_path / "store"
    await asyncio.to_thread(make_store, root, ADA, BOB)
    async with serving(root) as running:
        client = await running.login(ADA)
        assert (await client.append("INBOX", message())).startswith(b"OK")
        for command in ("CREATE More", "SELECT INBOX", "STORE 1 +FLAGS (\\Deleted)", "COPY 1 More", "EXPUNGE"):
            await client.ok(command)
    for operation in ("append", "create-folder", "flags", "copy", "expunge"):
        assert actors(str(root), operation) == [Actor(ADA, "imap")], operation


def test_python_api_records_its_account(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with Store.create(root) as store:
        ada, bob = store.add_mailbox(ADA), store.add_mailbox(BOB)
        ada.send("Hello", to=BOB, subject="News")
        (summary,) = bob.messages()
        bob.archive(summary)
    assert actors(root, "deliver") == [Actor(ADA, "api")]
    assert actors(root, "move") == [Actor(BOB, "api")]
    assert actors(root, "register") == [Actor("", "api")] * 2


def test_command_line_records_the_operator_and_the_command(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with new_store(root, ADA):
        pass
    mail = tmp_path / "mail.eml"
    mail.write_bytes(message())
    runner = CliRunner()
    added = runner.invoke(main, ["account", "add", EVE, "--password-stdin", "--root", root], input="secret\n")
    assert added.exit_code == 0, added.output
    delivered = runner.invoke(main, ["deliver", "--from", "x@y.test", "--to", ADA, "--root", root, str(mail)])
    assert delivered.exit_code == 0, delivered.output
    assert actors(root, "register")[-1] == Actor(OPERATOR, "markpost account add")
    assert actors(root, "deliver") == [Actor(OPERATOR, "markpost deliver")]


async def test_hooks_record_themselves(transport: Transport) -> None:
    settings = HookSettings(url="http://127.0.0.1:9/", timeout=Seconds(1.0))
    async with running_hooks(transport, agent=settings):
        pass
    assert set(actors(transport.root, "bookmark")) == {Actor("", "hooks")}
