"""Resolution of addresses, from memory and from the index."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from adapter.accounts.recipients import Recipients, Target
from adapter.config.loader import ConfigError, Size
from adapter.config.schema import Account, Domains, Quota, Settings
from adapter.smtp.submission import header_editor
from adapter.store.queries import mailboxes
from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError, Reason
from protocol.smtp.paths import Path as MailPath
from tests.support.messages import message
from tests.support.smtpd import make_store, serving
from tests.support.stores import ADA, BOB, deliver, new_store
from tests.support.waiting import PATIENCE

CARL = "carl@other.test"
DORA = "dora@example.test"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Transport]:
    with new_store(tmp_path / "store", ADA, BOB) as transport:
        yield transport


def at(address: str) -> MailPath:
    local, _, domain = address.rpartition("@")
    return MailPath(local, domain)


def resolved(recipients: Recipients, address: str) -> list[str]:
    targets = recipients.resolve(at(address))
    assert targets is not None
    return [target.address for target in targets]


def refused(recipients: Recipients, address: str) -> Reason:
    with pytest.raises(MailError) as failure:
        recipients.resolve(at(address))
    return failure.value.reason


def test_exact_address_matches_in_any_spelling(store: Transport) -> None:
    recipients = Recipients(Settings(), store)
    assert resolved(recipients, ADA) == resolved(recipients, "Ada@EXAMPLE.test") == [ADA]
    assert refused(recipients, "nobody@example.test") is Reason.NO_SUCH_ADDRESS
    assert recipients.resolve(at("x@elsewhere.test")) is None
    assert refused(recipients, f"{'a' * 200}@example.test") is Reason.BAD_ADDRESS


def test_deactivated_and_removed_addresses_are_different_errors(store: Transport) -> None:
    store.run(op.Deregister(BOB, "deactivate"))
    recipients = Recipients(Settings(), store)
    assert refused(recipients, BOB) is Reason.INACTIVE_ADDRESS
    store.run(op.Deregister(BOB, "purge"))
    recipients.refresh()
    assert refused(recipients, BOB) is Reason.NO_SUCH_ADDRESS


@pytest.mark.setting("aliases")
def test_aliases_may_have_several_members_and_cycles(store: Transport) -> None:
    aliases = {
        "all@example.test": ("team@example.test", ADA, "gone@example.test"),
        "team@example.test": (BOB, ADA),
        "dead@example.test": ("gone@example.test",),
        "circle@example.test": ("circle2@example.test",),
        "circle2@example.test": ("circle@example.test",),
        "sales@shop.test": (ADA,),
        "noted@example.test": ("bob+note@example.test", "noted+x@example.test"),
        # Every alias leads to every other: there are too many paths to walk all of them.
        **{f"web{n}@example.test": (*(f"web{m}@example.test" for m in range(50)), BOB) for n in range(50)},
    }
    recipients = Recipients(Settings(aliases=aliases), store)
    assert resolved(recipients, "all@example.test") == [BOB, ADA]
    assert resolved(recipients, "SALES@shop.test") == [ADA]  # the alias makes its domain local
    assert resolved(recipients, "team+note@example.test") == [BOB, ADA]
    assert refused(recipients, "dead@example.test") is Reason.NO_SUCH_ADDRESS
    assert refused(recipients, "circle@example.test") is Reason.NO_SUCH_ADDRESS
    assert resolved(recipients, "web7@example.test") == resolved(recipients, "noted@example.test") == [BOB]
    assert len(recipients.unregistered_addresses(at("web7@example.test"))) == 0
    assert recipients.unregistered_addresses(at("noted@example.test")) == [
        "bob+note@example.test",
        "noted+x@example.test",
    ]
    assert refused(recipients, "x@shop.test") is Reason.NO_SUCH_ADDRESS


def test_alias_member_in_a_remote_domain_is_logged(store: Transport, caplog: pytest.LogCaptureFixture) -> None:
    recipients = Recipients(Settings(aliases={"team@example.test": (ADA, "x@elsewhere.test")}), store)
    assert resolved(recipients, "team@example.test") == [ADA]
    assert "alias team@example.test: member x@elsewhere.test is in a remote domain" in caplog.text


@pytest.mark.setting("domains.detail", "account.detail_folders")
def test_detail_is_split_off_and_selects_a_folder(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "Lists"))
    settings = Settings(account={ADA: Account(detail_folders=True)})
    recipients = Recipients(settings, store)
    assert recipients.resolve(at("ada+Lists@example.test")) == (Target(ADA, "Lists"),)
    assert recipients.resolve(at("bob+Lists@example.test")) == (Target(BOB),)
    assert recipients.resolve(at("ada+@example.test")) == (Target(ADA),)
    assert recipients.check(Target(ADA, "lists"), 0) == Target(ADA, "Lists")
    assert recipients.check(Target(ADA, "None"), 0) == Target(ADA, None)
    assert refused(recipients, "nobody+x@example.test") is Reason.NO_SUCH_ADDRESS
    minus = Recipients(Settings(domains=Domains(detail="-")), store)
    assert resolved(minus, "ada-x@example.test") == [ADA]
    assert refused(minus, "ada+x@example.test") is Reason.NO_SUCH_ADDRESS
    assert refused(Recipients(Settings(domains=Domains(detail="")), store), "ada+x@example.test")


def test_detail_applies_to_alias_members_and_catch_all(store: Transport) -> None:
    settings = Settings(
        account={ADA: Account(detail_folders=True)},
        aliases={"spam@example.test": ("ada+Junk@example.test", BOB)},
        domains=Domains(catch_all={"example.test": "ada+strays@example.test"}),
    )
    recipients = Recipients(settings, store)
    assert recipients.resolve(at("spam@example.test")) == (Target(ADA, "junk"), Target(BOB))
    assert recipients.resolve(at("spam+x@example.test")) == (Target(ADA, "junk"), Target(BOB))
    assert recipients.resolve(at("whoever@example.test")) == (Target(ADA, "strays"),)
    assert recipients.resolve(at("whoever+x@example.test")) == (Target(ADA, "strays"),)


def test_detail_in_another_unicode_form_is_the_same_folder(store: Transport) -> None:
    store.run(op.CreateFolder(ADA, "\u00c4pfel"))
    recipients = Recipients(Settings(account={ADA: Account(detail_folders=True)}), store)
    (target,) = recipients.resolve(at("ada+a\u0308pfel@example.test")) or ()
    assert recipients.check(target, 0) == Target(ADA, "\u00c4pfel")


@pytest.mark.setting("domains.local", "domains.catch_all")
def test_catch_all_gets_unknown_recipients_of_local_domains(store: Transport) -> None:
    store.run(op.Deregister(BOB, "deactivate"))
    settings = Settings(domains=Domains(local=("Empty.test",), catch_all={"example.test": ADA}))
    recipients = Recipients(settings, store)
    assert resolved(recipients, "anything@example.test") == [ADA]
    assert refused(recipients, BOB) is refused(recipients, "bob+note@example.test") is Reason.INACTIVE_ADDRESS
    assert refused(recipients, "x@empty.test") is Reason.NO_SUCH_ADDRESS
    by_alias = Settings(aliases={"list@example.test": (BOB,)}, domains=settings.domains)
    assert refused(Recipients(by_alias, store), "list@example.test") is Reason.INACTIVE_ADDRESS
    assert not recipients.owns(ADA, "anything@example.test")


@pytest.mark.setting("domains.postmaster")
def test_postmaster_resolves_to_setting_or_local_postmaster(store: Transport) -> None:
    here = Recipients(Settings(domains=Domains(postmaster=BOB)), store)
    assert here.resolve(MailPath("Postmaster", "")) == here.resolve(at("PostMaster@example.test")) == (Target(BOB),)
    assert here.resolve(at("postmaster@elsewhere.test")) is None
    local = Domains(postmaster=BOB, local=("empty.test",), catch_all={"empty.test": ADA})
    assert Recipients(Settings(domains=local), store).resolve(at("postmaster@empty.test")) == (Target(BOB),)
    aliased = Recipients(Settings(aliases={"postmaster@example.test": (ADA,)}), store)
    assert aliased.resolve(MailPath("postmaster", "")) == (Target(ADA),)


@pytest.mark.parametrize("configured", ["", "gone@example.test"])
def test_mail_for_the_postmaster_is_always_accepted(store: Transport, configured: str) -> None:
    settings = Settings(domains=Domains(postmaster=configured, local=("empty.test",)))
    assert Recipients(settings, store).resolve(MailPath("Postmaster", "")) == (Target(ADA),)  # the first account
    assert Recipients(settings, store).resolve(at("postmaster@example.test")) == (Target(ADA),)
    assert Recipients(settings, store).resolve(at("POSTMASTER@empty.test")) == (Target(ADA),)
    store.run(op.Register("carl@other.test"))
    assert Recipients(settings, store).resolve(at("postmaster@other.test")) == (Target("carl@other.test"),)
    store.run(op.Register("postmaster@other.test"))
    assert Recipients(settings, store).resolve(MailPath("postmaster", "")) == (Target("postmaster@other.test"),)
    store.run(op.Deregister("postmaster@other.test", "deactivate"))
    assert Recipients(settings, store).resolve(at("postmaster@other.test")) == (Target("carl@other.test"),)


def test_both_forms_of_an_international_domain_are_local(store: Transport) -> None:
    store.run(op.Register("ada@münchen.test"))
    store.run(op.Register("bob@xn--kln-sna.test"))
    recipients = Recipients(Settings(), store)
    assert (
        resolved(recipients, "ada@xn--mnchen-3ya.test")
        == resolved(recipients, "ada@MÜNCHEN.test")
        == ["ada@münchen.test"]
    )
    assert resolved(recipients, "bob@köln.test") == ["bob@xn--kln-sna.test"]
    assert recipients.owns("ada@münchen.test", "Ada@xn--mnchen-3ya.test")
    for elsewhere in ("ada@xn--kln-sna0.test", "ada@xn--99999.test", "ada@bonn-ö.test"):
        assert recipients.resolve(at(elsewhere)) is None


def test_domains_follow_idna_2008(store: Transport) -> None:
    store.run(op.Register("ada@strasse.test"))
    store.run(op.Register("bob@faß.test"))
    recipients = Recipients(Settings(), store)
    assert recipients.resolve(at("ada@straße.test")) is None
    assert recipients.resolve(at("bob@fass.test")) is None
    assert resolved(recipients, "bob@xn--fa-hia.test") == ["bob@faß.test"]


@pytest.mark.parametrize(
    ("account", "right"),
    [("ada@straße.test", "xn--strae-oqa.test"), ("ada@bü--x.test", "bü--x.test"), (ADA, "example.test")],
)
def test_added_message_id_is_ascii_if_possible(store: Transport, account: str, right: str) -> None:
    if account != ADA:
        store.run(op.Register(account))
    edit = header_editor(Recipients(Settings(), store), account, datetime(2026, 11, 18, tzinfo=UTC))
    [added] = re.findall(r"Message-ID: <\w+@(.*)>\r\n", edit(f"From: {account}\r\n".encode()).decode())
    assert added == right


@pytest.mark.setting("quota.storage", "quota.messages", "account.storage", "account.messages", "account.over")
def test_quota_applies_to_octets_and_messages(store: Transport) -> None:
    deliver(store, ADA, octets=message(body="x" * 1000))
    settings = Settings(
        quota=Quota(storage=Size(2000), messages=5),
        account={BOB: Account(storage=Size(0), messages=0), ADA: Account(over="refuse")},
    )
    recipients = Recipients(settings, store)
    assert recipients.needs_query(Target(ADA))
    assert not recipients.needs_query(Target(BOB))
    assert recipients.check(Target(ADA), 100) == Target(ADA)
    with pytest.raises(MailError) as failure:
        recipients.check(Target(ADA), 2000)
    assert failure.value.reason is Reason.OVER_QUOTA
    few = Recipients(Settings(quota=Quota(messages=1)), store)
    with pytest.raises(MailError) as failure:
        few.check(Target(ADA), 0)
    assert failure.value.reason is Reason.OVER_QUOTA_SOFT


@pytest.mark.parametrize(
    "settings",
    [
        Settings(aliases={"not an address": (ADA,)}),
        Settings(aliases={ADA: ("nobody",)}),
        Settings(domains=Domains(catch_all={"example.test": "x"})),
        Settings(domains=Domains(postmaster="x")),
        Settings(account={"x": Account()}),
    ],
)
def test_invalid_address_in_the_settings_is_refused(store: Transport, settings: Settings) -> None:
    with pytest.raises(ConfigError):
        Recipients(settings, store)


async def test_address_registered_a_moment_ago_is_accepted(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store") as running:
        await asyncio.to_thread(running.transport.run, op.Register(CARL))
        client = await running.hello()
        assert (await client.mail(message(), CARL)).code == 250
        assert len(running.inbox(CARL)) == 1


@pytest.mark.parametrize("address", ["new@example.test", "ada+new@example.test", "team@example.test"])
async def test_new_registration_takes_precedence_over_alias_and_catch_all(tmp_path: Path, address: str) -> None:
    make_store(tmp_path / "store")
    settings = Settings(aliases={"team@example.test": (BOB,)}, domains=Domains(catch_all={"example.test": ADA}))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello()
        assert (await client.mail(message(), address)).code == 250
        await asyncio.to_thread(running.transport.run, op.Register(address))
        assert (await client.mail(message(), address)).code == 250
        assert len(running.inbox(address)) == 1
        assert len(running.inbox(ADA)) + len(running.inbox(BOB)) == 1


async def test_full_member_of_an_alias_does_not_refuse_mail_of_the_others(tmp_path: Path) -> None:
    make_store(tmp_path / "store", ADA, BOB, CARL)
    settings = Settings(
        account={ADA: Account(storage=Size(1), over="refuse"), CARL: Account(storage=Size(10_000))},
        aliases={"some@example.test": (ADA, BOB), "two@example.test": (CARL, BOB), "one@example.test": (ADA,)},
    )
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello()
        assert (await client.mail(message(), ADA)).enhanced == "5.2.2"
        await asyncio.to_thread(deliver, running.transport, ADA)  # the mailbox is now full
        assert (await client.mail(message(), "some@example.test")).code == 250
        assert await client.codes("MAIL FROM:<x@y.test>", "RCPT TO:<one@example.test>", "RSET") == [250, 552, 250]
        await asyncio.to_thread(running.transport.run, op.Deregister(CARL, "deactivate"))
        assert (await client.mail(message(), "two@example.test")).code == 250
        assert [len(running.inbox(each)) for each in (ADA, BOB)] == [1, 2]


async def test_quota_and_detail_are_checked_at_rcpt(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(
        quota=Quota(storage=Size(3000)),
        account={ADA: Account(detail_folders=True), BOB: Account(over="refuse")},
    )
    async with serving(tmp_path / "store", settings) as running:
        await asyncio.to_thread(running.transport.run, op.CreateFolder(ADA, "Lists"))
        client = await running.hello()
        assert (await client.mail(message(), "ada+lists@example.test")).code == 250
        assert len(running.inbox(ADA, "Lists")) == 1
        assert (await client.ask("MAIL FROM:<x@y.test> SIZE=5000")).code == 250
        ada, bob = await client.ask(f"RCPT TO:<{ADA}>"), await client.ask(f"RCPT TO:<{BOB}>")
        assert (ada.code, ada.enhanced) == (452, "4.2.2")
        assert (bob.code, bob.enhanced) == (552, "5.2.2")


def letter(size: int) -> bytes:
    return message(body="x" * 70 + "\r\n" + "y\r\n" * (size // 3))


async def test_quota_counts_the_real_size_of_a_message(tmp_path: Path) -> None:
    """The announced size does not count; a refused message is not delivered."""
    make_store(tmp_path / "store", ADA, BOB, CARL)
    settings = Settings(
        quota=Quota(storage=Size(3000)),
        account={BOB: Account(over="refuse"), CARL: Account(storage=Size(0))},
        aliases={"both@example.test": (ADA, CARL)},
    )
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello()
        ada, bob = await client.mail(letter(5000), ADA), await client.mail(letter(5000), BOB)
        assert [(ada.code, ada.enhanced), (bob.code, bob.enhanced)] == [(452, "4.2.2"), (552, "5.2.2")]
        assert not running.inbox(ADA)
        assert not running.inbox(BOB)
        lmtp = await running.hello("lmtp")
        given = [await lmtp.mail(letter(5000), ADA, CARL, BOB), await lmtp.reply(), await lmtp.reply()]
        assert [reply.code for reply in given] == [452, 250, 552]
        assert [len(running.inbox(each)) for each in (ADA, BOB, CARL)] == [0, 0, 1]
        # One reply for several recipients: a quota may be exceeded, else the others would get every retry.
        assert (await client.mail(letter(5000), BOB, CARL)).code == 250
        assert (await lmtp.mail(letter(5000), "both@example.test")).code == 250
        assert [len(running.inbox(each)) for each in (ADA, BOB, CARL)] == [1, 1, 3]
        assert (await client.ask("MAIL FROM:<x@y.test>")).code == 250
        assert (await client.codes(f"RCPT TO:<{ADA}>", f"RCPT TO:<{BOB}>")) == [452, 552]  # the mailbox is full


async def test_concurrent_deliveries_do_not_exceed_the_quota(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    async with serving(tmp_path / "store", Settings(quota=Quota(messages=3))) as running:
        clients = [await running.hello() for _ in range(8)]
        for client in clients:  # every recipient is accepted before the first message is
            assert await client.codes("MAIL FROM:<bob@other.test>", f"RCPT TO:<{ADA}>", "DATA") == [250, 250, 354]
        for client in clients:
            client.send(message() + b".\r\n")
        replies = await asyncio.gather(*(client.reply() for client in clients))
        assert sorted(reply.code for reply in replies) == [250] * 3 + [452] * 5
        assert len(running.inbox()) == 3


async def test_submission_needs_room_for_the_copy_in_sent(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(account={ADA: Account(storage=Size(3000), over="refuse")})
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        assert (await client.login()).code == 235
        ours = b"From: ada@example.test\r\n\r\n" + b"text\r\n" * 800
        reply = await client.mail(ours, BOB, sender=ADA)
        assert (reply.code, reply.enhanced) == (552, "5.2.2")
        assert not running.inbox(BOB)
        assert (await client.mail(b"From: ada@example.test\r\n\r\nshort\r\n", BOB, sender=ADA)).code == 250


def test_registrations_are_reloaded_after_their_changes_only(store: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    recipients = Recipients(Settings(), store)
    reads: list[int] = []
    reading = store.reading

    def count() -> AbstractContextManager[sqlite3.Connection]:
        reads.append(1)
        return reading()

    monkeypatch.setattr(store, "reading", count)
    deliver(store, ADA)
    recipients.refresh()
    assert not reads  # deliveries cause no reload
    with Transport.open(store.root) as beside:
        beside.run(op.Register(DORA))
        recipients.refresh()
    assert len(reads) == 1
    assert resolved(recipients, DORA) == [DORA]
    recipients.refresh()
    assert len(reads) == 1


def test_address_registered_a_moment_ago_is_found_while_another_connection_reads_it(
    store: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipients = Recipients(Settings(), store)
    store.run(op.Register(DORA))
    is_reading, may_go_on = threading.Event(), threading.Event()
    registrations = mailboxes.registrations

    def slow(connection: sqlite3.Connection) -> object:
        is_reading.set()
        assert may_go_on.wait(PATIENCE)
        return registrations(connection)

    monkeypatch.setattr(mailboxes, "registrations", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recipients.resolve_fresh, at(DORA))
        assert is_reading.wait(PATIENCE)
        second = pool.submit(recipients.resolve_fresh, at(DORA))
        wait([second], timeout=0.3)  # it must wait for the first, not refuse the address
        may_go_on.set()
        assert first.result() == second.result() == (Target(DORA),)
