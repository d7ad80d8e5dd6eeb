"""crypt(3) of the system: whatever its libcrypt knows, as Dovecot and the system's own logins use it.

Python's module for it is gone in newer versions; the library itself is kept by every distribution.
"""

from __future__ import annotations

import ctypes
import functools
import hmac

_NAMES = ("libcrypt.so.1", "libcrypt.so.2")
_ROOM = 1 << 15  # struct crypt_data of libxcrypt
_MAX_PHRASE = 511


@functools.cache
def _library() -> ctypes.CDLL | None:
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
            function = library.crypt_rn
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
        function.restype = ctypes.c_char_p
        return library
    return None


def available() -> bool:
    return _library() is not None


def verify(stored: str, password: bytes) -> bool | None:
    """Whether this is the password of a hash; None: the library cannot read the hash. Takes its time."""
    library = _library()
    if library is None:
        return None
    if b"\0" in password or len(password) > _MAX_PHRASE:
        return False
    room = ctypes.create_string_buffer(_ROOM)
    setting = stored.encode("utf-8", "surrogateescape")
    made: bytes | None = library.crypt_rn(password, setting, room, _ROOM)
    if made is None or made.startswith(b"*"):
        return None
    return hmac.compare_digest(made, setting)
