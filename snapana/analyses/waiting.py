"""Memory that was freed but waited for another stream (``record_stream``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.analyses.sites import by_site
from snapana.snapshot.model import Snapshot


@dataclass(frozen=True)
class Waiting:
    """What waited when most did.

    Attributes:
        event: when; -1 before the first event.
        bytes: blocks whose free was requested, not completed; a free that completes at once does not count.
        sites: those blocks by the site of their allocation, as ``by_site``; ``bytes`` sum to ``bytes``.
        peak_allocated: highest allocated of the window.
        peak_active: highest active of the window.

    """

    event: int
    bytes: int
    sites: pd.DataFrame
    peak_allocated: int
    peak_active: int


def waiting(snapshot: Snapshot, device: int) -> Waiting:
    """Find when most bytes waited for another stream, and whose they were."""
    replay = snapshot.replay[device]
    curves = replay.curves
    allocated, active = curves["allocated"].to_numpy(), curves["active"].to_numpy()
    pending = active - allocated
    # An immediate free is requested and completed by two neighbouring events.
    lasting = pending.copy()
    lasting[:-1] = np.minimum(pending[:-1], pending[1:])
    event = int(lasting.argmax()) - 1
    lives = replay.allocations
    asked, completed = lives["free_requested"].to_numpy(), lives["free_completed"].to_numpy()
    # Those that still wait one event later: the others completed at once.
    still = (asked != -1) & (asked <= event) & ((completed == -1) | (completed > event + 1))
    still &= lives["alloc"].to_numpy() <= event
    sites = by_site(snapshot, lives[still])
    return Waiting(event, int(sites["bytes"].sum()), sites, int(allocated.max()), int(active.max()))
