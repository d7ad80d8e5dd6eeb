"""``python -m tests.support.processes.relay_child ROOT PORT``: relay until killed."""

from __future__ import annotations

import asyncio
import sys

from adapter.config.loader import Seconds
from adapter.config.schema import RelaySettings
from adapter.relay import relay
from adapter.transport.transport import Transport


async def main(root: str, port: int) -> None:
    chosen = RelaySettings(
        host="127.0.0.1",
        port=port,
        tls="none",
        helo="markpost.test",
        connections=2,
        first_retry=Seconds(0.02),
        longest_retry=Seconds(1.0),
    )
    with Transport.open(root) as transport:
        print("ready", flush=True)
        await relay.run(transport, chosen, asyncio.Event(), hostname="markpost.test")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
