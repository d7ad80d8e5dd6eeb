"""Where the demo lives: a store, a certificate and the accounts; made once, kept afterwards."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from adapter.accounts.credentials import Credentials
from adapter.api import Store
from adapter.demo import certificate_authority as authority
from adapter.demo import sample_mail

HOSTNAME = "localhost"
ADA, BOB = "ada@example.test", "bob@example.test"
PASSWORD = "correct horse"  # noqa: S105 - printed on the screen, for loopback only


@dataclass(frozen=True, slots=True)
class Place:
    root: str
    authority: str
    certificate: str  # with its key


def prepare(directory: str) -> Place:
    """Make what is not there yet."""
    place = Place(f"{directory}/mail", f"{directory}/authority.pem", f"{directory}/localhost.pem")
    os.makedirs(directory, exist_ok=True)
    if not os.path.exists(place.certificate):
        public, private = authority.make(HOSTNAME)
        authority.write(place.authority, public)
        authority.write(place.certificate, private)
    if not os.path.exists(place.root):
        unfinished = f"{place.root}.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        with Store.create(unfinished) as store:
            ada, bob = store.add_mailbox(ADA), store.add_mailbox(BOB)
            with Credentials.open(store.transport) as credentials:
                for address in (ADA, BOB):
                    credentials.set_password(address, PASSWORD)
            sample_mail.fill(store, ada, bob)
        os.rename(unfinished, place.root)
    return place
