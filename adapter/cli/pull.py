"""``markpost pull``: bring the mail of accounts on other servers here."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping

import click

from adapter.cli.failures import FAILED, TEMPORARY, CommandError
from adapter.cli.options import config_option, open_store, plural, root_option, size
from adapter.config import loader
from adapter.config import mirror as upstreams
from adapter.config.loader import ConfigError
from adapter.config.mirror import UpstreamSettings
from adapter.config.schema import Settings
from adapter.mirror import follow
from adapter.mirror.client import UpstreamError
from adapter.mirror.folder_sync import Pulled
from adapter.mirror.limits import Limits
from adapter.store.quotas import Quotas
from adapter.transport.transport import Transport


@click.command(short_help="Mirror accounts of other IMAP servers.")
@root_option
@config_option
@click.argument("name", required=False)
def pull(root: str, config_file: str | None, name: str | None) -> None:
    """Mirror the accounts of [upstream.NAME] sections, or the one named: folders, messages, flags, dates.

    What was brought before does not come again, also if a pull was interrupted. With follow = true the running server
    does this by itself.
    """
    try:
        settings = loader.load(Settings, config_file)
        wanted = _wanted(settings, name)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    with open_store(root) as transport:
        limits = Limits(settings.limits.message_size, Quotas(settings))
        failed = asyncio.run(_pull_all(transport, wanted, limits))
    if failed:
        raise CommandError(f"{', '.join(failed)}: not everything could be pulled; run it again", TEMPORARY)


def _wanted(settings: Settings, name: str | None) -> Mapping[str, UpstreamSettings]:
    if name is not None and name not in settings.upstream:
        known = ", ".join(settings.upstream) or "none"
        raise CommandError(f"there is no [upstream.{name}] in the configuration; there: {known}", FAILED)
    wanted = settings.upstream if name is None else {name: settings.upstream[name]}
    if not wanted:
        raise CommandError("there is no [upstream.NAME] in the configuration: see conf/markpost.toml")
    problems = [
        f"upstream.{each}{'.' if key else ''}{key}: {text}"
        for each, upstream in wanted.items()
        for key, text in upstreams.problems(each, upstream)
    ]
    if problems:
        raise ConfigError(*problems)
    return wanted


async def _pull_all(transport: Transport, wanted: Mapping[str, UpstreamSettings], limits: Limits) -> list[str]:
    """One after the other; those that failed."""
    if (task := asyncio.current_task()) is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    failed = []
    for name, upstream in wanted.items():
        try:
            done = await follow.pull(transport, name, upstream, limits)
        except UpstreamError as error:
            click.echo(f"markpost: {name}: {error}", err=True)
            failed.append(name)
            continue
        except asyncio.CancelledError:
            raise CommandError("interrupted; what was brought stays, the rest comes the next time") from None
        _report(name, upstream, done)
        failed += [name] if done.failed else []
    return failed


def _report(name: str, upstream: UpstreamSettings, done: Pulled) -> None:
    for line in done.failed:
        click.echo(f"markpost: {name}: {line}", err=True)
    counts = [f"{plural(done.messages, 'message')} ({size(done.octets)})"]
    counts += [f"{done.claimed} that lay here already"] if done.claimed else []
    counts += [f"{done.flagged} with other flags"] if done.flagged else []
    counts += [f"{done.removed} removed"] if done.removed else []
    click.echo(f"{name}: {', '.join(counts)} in {plural(len(done.folders), 'folder')} of {upstream.account}")
