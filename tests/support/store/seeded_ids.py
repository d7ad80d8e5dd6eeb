"""Identifiers and times derived from a seed, for tests that depend on where rows are stored."""

from __future__ import annotations

import itertools
import random
import time
from types import SimpleNamespace

import pytest

from adapter.transport import ids

_BEGIN_NANOSECONDS = 1_700_000_000 * 10**9
_TICK_NANOSECONDS = 1_000_000


def seed_ids(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Make every new id and time follow from ``seed`` until the patch is undone."""
    ticks = itertools.count(_BEGIN_NANOSECONDS, _TICK_NANOSECONDS)
    clock = SimpleNamespace(time_ns=lambda: next(ticks), strftime=time.strftime, gmtime=time.gmtime)
    patch.setattr(ids, "os", SimpleNamespace(urandom=random.Random(seed).randbytes))
    patch.setattr(ids, "time", clock)
