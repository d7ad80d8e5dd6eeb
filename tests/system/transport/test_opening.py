"""Opening a store as another user."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.transport import operations as op
from adapter.transport.transport import Transport
from protocol.errors import MailError
from tests.support.messages import message
from tests.support.processes.other_users import as_unprivileged, only_for_root
from tests.support.stores import ADA, BOB, deliver, new_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store with some mail."""
    with new_store(tmp_path / "store", ADA, BOB) as store:
        deliver(store, ADA, BOB, octets=message(attachments=[b"a" * 5000]))
        store.run(op.Subscribe(ADA, "Later"))
    return tmp_path / "store"


def _opening(root: Path) -> str:
    try:
        Transport.open(root).close()
    except MailError as error:
        return str(error)
    return "opened"


@only_for_root
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_root_of_another_user(root: Path, mode: int) -> None:
    root.chmod(mode)
    assert as_unprivileged(root, _opening) in (
        f"{root} belongs to user 0 and is not writable for user 65534",
        f"{root} cannot be opened: Permission denied",
    )
