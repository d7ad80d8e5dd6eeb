"""OAuth tokens checked by a command."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from adapter.config.schema import Login, Settings
from tests.support.smtpd import make_store, serving
from tests.support.stores import ADA, BOB


@pytest.mark.setting("login.token_command")
async def test_oauth_tokens_of_any_length(tmp_path: Path) -> None:
    """The check is a command of the operator's: the token on its standard input, an address on its output."""
    make_store(tmp_path / "store")
    check = tmp_path / "check"
    check.write_text(f'#!/bin/sh\nread token\ncase "$token" in good*) echo {ADA};; *) exit 1;; esac\n')
    check.chmod(0o755)
    settings = Settings(login=Login(token_command=(str(check),)))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        for token, user, expected in (
            ("bad", ADA, 535),
            ("good" + "x" * 9000, BOB, 535),  # of another account
            ("good" + "x" * 40_000, ADA, 235),
        ):
            response = f"user={user}\x01auth=Bearer {token}\x01\x01".encode()
            reply = await client.ask(f"AUTH XOAUTH2 {base64.b64encode(response).decode()}")
            if reply.code == 334:
                reply = await client.ask("")
            assert reply.code == expected, token[:5]
        other = await running.hello("submission")
        response = f"n,a={ADA},\x01auth=Bearer goodtoken\x01\x01".encode()
        assert (await other.ask(f"AUTH OAUTHBEARER {base64.b64encode(response).decode()}")).code == 235


async def test_a_token_check_that_does_not_work_is_temporary(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    settings = Settings(login=Login(token_command=("/nonexistent/check",)))
    async with serving(tmp_path / "store", settings) as running:
        client = await running.hello("submission")
        response = f"user={ADA}\x01auth=Bearer token\x01\x01".encode()
        assert (await client.ask(f"AUTH XOAUTH2 {base64.b64encode(response).decode()}")).code == 454
