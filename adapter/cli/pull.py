"""``markpost pull``: mirror accounts of other IMAP servers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Mapping

import click

from adapter.cli.failures import EX_TEMPFAIL, CommandError
from adapter.cli.options import config_option, open_store, plural, root_option, size
from adapter.config import loader
from adapter.config.loader import ConfigError
from adapter.config.schema import Settings, UpstreamSettings
from adapter.config.validate import upstream_problems
from adapter.mirror import follow
from adapter.mirror.client import UpstreamError
from adapter.mirror.folder_sync import PullResult
from adapter.mirror.limits import MirrorLimits
from adapter.server.settings import VALUE_RULES
from adapter.store.quotas import Quotas
from adapter.transport.transport import Transport


@click.command(short_help="Mirror accounts of other IMAP servers.")
@root_option
@config_option
@click.argument("name", required=False)
def pull(root: str, config_file: str | None, name: str | None) -> None:
    """Mirror the accounts of all [upstream.NAME] sections, or only NAME: folders, messages, flags, dates.

    A pull is idempotent: messages that are already here are not fetched again, also after an interruption. With
    follow = true a running server mirrors the account continuously.
    """
    try:
        settings = loader.load(Settings, config_file)
        upstreams = _select_upstreams(settings, name)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    with open_store(root) as transport:
        limits = MirrorLimits(settings.limits.message_size, Quotas(settings))
        failed = asyncio.run(_pull_all(transport, upstreams, limits))
    if failed:
        raise CommandError(f"{', '.join(failed)}: not everything could be pulled; run the command again", EX_TEMPFAIL)


def _select_upstreams(settings: Settings, name: str | None) -> Mapping[str, UpstreamSettings]:
    if name is not None and name not in settings.upstream:
        configured = ", ".join(settings.upstream) or "none"
        raise CommandError(f"no section [upstream.{name}] in the configuration; configured: {configured}")
    selected = settings.upstream if name is None else {name: settings.upstream[name]}
    if not selected:
        raise CommandError("no section [upstream.NAME] in the configuration: see conf/markpost.toml")
    problems = [
        f"upstream.{each}{'.' if key else ''}{key}: {text}"
        for each, upstream in selected.items()
        for key, text in upstream_problems(each, upstream, VALUE_RULES)
    ]
    if problems:
        raise ConfigError(*problems)
    return selected


async def _pull_all(transport: Transport, upstreams: Mapping[str, UpstreamSettings], limits: MirrorLimits) -> list[str]:
    """Pull one account after the other and return the names of those that failed."""
    if (task := asyncio.current_task()) is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    failed = []
    for name, upstream in upstreams.items():
        try:
            pulled = await follow.pull(transport, name, upstream, limits)
        except UpstreamError as error:
            click.echo(f"markpost: {name}: {error}", err=True)
            failed.append(name)
            continue
        except asyncio.CancelledError:
            raise CommandError("interrupted; run the command again to fetch the rest") from None
        _report(name, upstream, pulled)
        failed += [name] if pulled.failed else []
    return failed


def _report(name: str, upstream: UpstreamSettings, pulled: PullResult) -> None:
    for line in pulled.failed:
        click.echo(f"markpost: {name}: {line}", err=True)
    counts = [f"{plural(pulled.messages, 'message')} ({size(pulled.octets)})"]
    counts += [f"{pulled.claimed} already here"] if pulled.claimed else []
    counts += [f"{pulled.flagged} with changed flags"] if pulled.flagged else []
    counts += [f"{pulled.removed} removed"] if pulled.removed else []
    click.echo(f"{name}: {', '.join(counts)} in {plural(len(pulled.folders), 'folder')} of {upstream.account}")
