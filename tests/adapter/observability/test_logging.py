"""The log handler."""

from __future__ import annotations

import io
import json
import logging
import os

from adapter.observability import logging as logs


def test_lines_keep_their_order_and_warnings_are_written_at_once() -> None:
    stream = io.StringIO()
    handler = logs.LogWriter(stream)
    handler.setFormatter(logs.JsonLines())
    log = logging.Logger("test", logging.INFO)
    log.addHandler(handler)
    for number in range(100):
        log.info("line %d", number)
    log.warning("last")
    lines = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert lines == [*[f"line {number}" for number in range(100)], "last"]
    read, write = os.pipe()
    os.close(read)
    broken = logs.LogWriter(os.fdopen(write, "w"))
    log.addHandler(broken)
    log.error("into a closed pipe")
    log.info("another")
