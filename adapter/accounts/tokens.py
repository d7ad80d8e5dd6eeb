"""Whose OAuth token is this? A command or a URL of the operator's knows.

Invariants: the token is never on a command line or in a log; answers are bounded in size and time.
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

_MAX_ANSWER = 64 << 10


class TokenCheckFailedError(Exception):
    """Nobody can tell now."""


class TokenCheck:
    def __init__(self, settings: Login) -> None:
        self._settings = settings
        url = settings.token_url
        if url and not http.is_web_address(url):
            raise ConfigError(f"login.token_url must be an http or https URL, not {url!r}")

    @property
    def configured(self) -> bool:
        return bool(self._settings.token_command or self._settings.token_url)

    async def owner(self, token: str, user: str) -> str | None:
        """The address a token belongs to, or None if it is not valid. Raises TokenCheckFailedError."""
        try:
            async with asyncio.timeout(self._settings.token_timeout):
                if self._settings.token_command:
                    return await self._ask_command(token, user)
                return await asyncio.to_thread(self._ask_url, token)
        except (OSError, ValueError) as error:
            _log.error("the token check does not work: %s", type(error).__name__)
            raise TokenCheckFailedError from None

    async def _ask_command(self, token: str, user: str) -> str | None:
        process = await asyncio.create_subprocess_exec(
            *self._settings.token_command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            answer, _ = await process.communicate(f"{token}\n{user}\n".encode())
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # it need not read; Python before 3.11.5 logs that unless asked
                    await process.stdin.wait_closed()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return answer[:_MAX_ANSWER].decode("utf-8").strip() or None
        if process.returncode == 1:
            return None
        raise OSError(f"exit status {process.returncode}")

    def _ask_url(self, token: str) -> str | None:
        """RFC 7662: an active token names its user."""
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
        answer: Any = json.loads(text)
        if not isinstance(answer, Mapping) or answer.get("active") is not True:
            return None
        found = answer.get("email") or answer.get("username") or answer.get("sub")
        return found if isinstance(found, str) else None
