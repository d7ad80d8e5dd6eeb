"""The ``start`` fixture: an IMAP server with the settings a test asks for."""

from tests.support.imapd import start

__all__ = ["start"]
