"""Bearer tokens checked by a command."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.imapd import Start
from tests.support.stores import ADA


async def test_bearer_tokens(start: Start, tmp_path: Path) -> None:
    check = tmp_path / "check"
    check.write_text('#!/bin/sh\nread token\n[ "$token" = good ] && echo ada@example.test || exit 1\n')
    check.chmod(0o755)
    async with start(login={"token_command": (str(check),), "delay": 0.0}) as server:
        client = await server.connect()
        assert b"AUTH=OAUTHBEARER AUTH=XOAUTH2" in await client.line()
        bearer = base64.b64encode(f"n,a={ADA},\x01auth=Bearer bad\x01\x01".encode()).decode()
        tag = client.start(f"AUTHENTICATE OAUTHBEARER {bearer}")
        assert (await client.line()).startswith(b"+ ")  # RFC 7628 3.2.2: why, in JSON
        client.send(b"AQ==\r\n")
        assert (await client.finish(tag))[1].startswith(b"NO [AUTHENTICATIONFAILED]")
        old = base64.b64encode(f"user={ADA}\x01auth=Bearer good\x01\x01".encode()).decode()
        await client.ok(f"AUTHENTICATE XOAUTH2 {old}")
        await client.ok("SELECT INBOX")
        await client.close()
