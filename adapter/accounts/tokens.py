"""Validate OAuth tokens with an operator-supplied command or introspection URL.

Invariants: the token is never on a command line or in a log; responses are bounded in size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.parse
from collections.abc import Mapping
from typing import Any

from adapter.config.loader import ConfigError
from adapter.config.schema import Login
from adapter.net import http

_log = logging.getLogger(__name__)

_MAX_RESPONSE_BYTES = 64 << 10


class TokenCheckFailedError(Exception):
    """The token cannot be checked now."""


class TokenCheck:
    """Validates tokens as ``[login]`` configures."""

    def __init__(self, settings: Login) -> None:
        self._settings = settings
        url = settings.token_url
        if url and not http.is_web_address(url):
            raise ConfigError(f"login.token_url must be an http or https URL, not {url!r}")

    @property
    def configured(self) -> bool:
        return bool(self._settings.token_command or self._settings.token_url)

    async def owner(self, token: str, user: str) -> str | None:
        """Return the address a token belongs to, or None if it is invalid. Raises TokenCheckFailedError."""
        try:
            async with asyncio.timeout(self._settings.token_timeout):
                if self._settings.token_command:
                    return await self._run_command(token, user)
                return await asyncio.to_thread(self._introspect, token)
        except (OSError, ValueError) as error:
            _log.error("token check: failed (%s); refusing the login for now", type(error).__name__)
            raise TokenCheckFailedError from None

    async def _run_command(self, token: str, user: str) -> str | None:
        process = await asyncio.create_subprocess_exec(
            *self._settings.token_command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            output, _ = await process.communicate(f"{token}\n{user}\n".encode())
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # unread input, which Python before 3.11.5 would log
                    await process.stdin.wait_closed()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return output[:_MAX_RESPONSE_BYTES].decode("utf-8").strip() or None
        if process.returncode == 1:
            return None
        raise OSError(f"exit status {process.returncode}")

    def _introspect(self, token: str) -> str | None:
        """Introspect a token (RFC 7662)."""
        status, text = http.post(
            self._settings.token_url,
            urllib.parse.urlencode({"token": token}).encode(),
            {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"},
            self._settings.token_timeout,
        )
        if status in (400, 401, 403):
            return None
        if status != 200:
            raise OSError(f"HTTP status {status}")
        response: Any = json.loads(text)
        if not isinstance(response, Mapping) or response.get("active") is not True:
            return None
        address = response.get("email") or response.get("username") or response.get("sub")
        return address if isinstance(address, str) else None
