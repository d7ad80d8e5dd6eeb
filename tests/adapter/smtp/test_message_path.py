"""The path of one LMTP DATA through the modules of ``adapter/smtp`` reads downwards, without re-entry."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import adapter.smtp
from tests.support.messages import message
from tests.support.smtpd import make_store, serving

#: The order of the path; ``session`` is above ``commands`` because it runs them.
ORDER = ("session", "commands", "delivery", "delivery_report", "transaction", "message", "stream")
_FOLDER = Path(adapter.smtp.__path__[0])


def _module(frame: FrameType | None) -> str:
    path = Path(frame.f_code.co_filename) if frame is not None else Path()
    return path.stem if path.parent == _FOLDER else ""


async def test_path_of_a_message_reads_downwards(tmp_path: Path) -> None:
    """Handlers act on their session; every other call between two modules goes down, and replies are return values."""
    make_store(tmp_path / "store")
    calls: set[tuple[str, str]] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (caller := _module(frame.f_back)) and (callee := _module(frame)):
            calls.add((caller, callee))

    async with serving(tmp_path / "store", kinds=["lmtp"]) as running:
        client = await running.hello("lmtp")
        profiler = sys.getprofile()
        sys.setprofile(record)
        try:
            assert (await client.mail(message())).code == 250
        finally:
            sys.setprofile(profiler)
    between = {(caller, callee) for caller, callee in calls if caller != callee}
    assert {callee for _, callee in between} == set(ORDER)
    upward = {(caller, callee) for caller, callee in between if ORDER.index(callee) < ORDER.index(caller)}
    assert upward == {("commands", "session")}
