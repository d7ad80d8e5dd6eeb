"""Watching a mailbox that another process delivers to."""

from __future__ import annotations

import subprocess
import sys

from adapter.api import Mailbox, Store
from tests.support.mail.api_stores import ADA, BOB
from tests.support.paths import REPOSITORY
from tests.support.waiting import PATIENCE

ROOT = REPOSITORY


def test_watch_hears_of_other_processes(bob: Mailbox, store: Store) -> None:
    code = (
        "from adapter.api import Store\n"
        f"with Store.open({store.transport.root!r}) as store:\n"
        f"    store.mailbox({ADA!r}).send('x', to={BOB!r}, subject='from afar')\n"
    )
    watch = bob.watch(timeout=PATIENCE)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
    assert next(watch).subject == "from afar"
    watch.close()
