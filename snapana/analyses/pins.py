"""How old the blocks are that keep segments."""

from __future__ import annotations

from dataclasses import dataclass

from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.steps import Steps
from snapana.snapshot.model import Snapshot


@dataclass(frozen=True)
class Age:
    """Age of the oldest of some blocks at an instant; all None for what existed before the window.

    Attributes:
        events: since its allocation.
        us: microseconds since then, None where times are not recorded.
        steps: ends of steps since then, None without steps.

    """

    events: int | None
    us: int | None
    steps: int | None


def pin_age(snapshot: Snapshot, device: int, steps: Steps, cache: Fragmentation, born: int) -> Age:
    """Give the age of a block that event ``born`` allocated (-1: before the window)."""
    if born < 0:
        return Age(None, None, None)
    replay = snapshot.replay[device]
    start, now = replay.time_us(born), replay.time_us(cache.event)
    ends = steps.table["end_event"]
    passed = int(((ends >= born) & (ends <= cache.event)).sum()) if len(steps) else None
    return Age(cache.event - born, None if start is None or now is None else now - start, passed)
