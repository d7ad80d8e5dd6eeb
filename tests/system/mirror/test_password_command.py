"""Passwords printed by a command."""

from __future__ import annotations

from adapter.config.loader import Seconds
from adapter.config.schema import UpstreamSettings
from adapter.mirror.session import _password
from tests.support.waiting import PATIENCE


async def test_a_password_that_is_printed_piece_by_piece() -> None:
    command = ("/bin/sh", "-c", "printf half; sleep 0.3; echo ' and half'; echo more")
    assert await _password(UpstreamSettings(password_command=command, timeout=Seconds(PATIENCE))) == "half and half"
