"""Whether the recorded requests would have fitted into expandable segments: asked of the simulated allocator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from snapana.allocator.rounding import Rounding
from snapana.allocator.simulate import SimulatedOutOfMemoryError, Simulator
from snapana.analyses.failure import OutOfMemory
from snapana.snapshot.model import Snapshot

# Longer recordings take too long to ask beside everything else.
MOST_EVENTS = 80_000


def fits_expandable(snapshot: Snapshot, failure: OutOfMemory) -> bool | None:
    """Run all requests up to a failed one, and that one, with expandable segments under the same limit.

    Returns:
        None where the recording does not begin with an empty allocator, is too long, or the limit is not known.

    """
    replay = snapshot.replay[failure.device]
    coverage = replay.coverage
    if not coverage.complete or failure.event > MOST_EVENTS or failure.device_free is None:
        return None
    limit = failure.limit if failure.limit is not None else failure.limit_low
    if limit is None:
        limit = failure.reserved + failure.device_free
    settings = replace(snapshot.settings, expandable_segments=True, max_split_size=None)
    rounding = Rounding(settings.roundup_power2_divisions, snapshot.rounding_pad)
    sim = Simulator(settings, rounding=rounding, limit=limit)
    lives = replay.allocations
    born, asked, done = (lives[name].to_numpy() for name in ("alloc", "free_requested", "free_completed"))
    last = failure.event
    rows = np.arange(len(lives))
    schedule = sorted(
        [
            *((int(event), 0, int(row)) for event, row in zip(born, rows, strict=True) if 0 <= event < last),
            *((int(event), 1, int(row)) for event, row in zip(asked, rows, strict=True) if 0 <= event < last),
            *((int(event), 2, int(row)) for event, row in zip(done, rows, strict=True) if 0 <= event < last),
        ]
    )
    requested, stream = lives["requested"].tolist(), lives["stream"].tolist()
    pool = [snapshot.pools[max(number, 0)] for number in lives["pool"].tolist()]
    place: dict[int, int] = {}
    try:
        for _, what, row in schedule:
            if what == 0:
                place[row] = sim.malloc(max(requested[row], 1), stream[row], pool[row])
            elif what == 1:
                sim.free_requested(place[row])
            else:
                sim.free_completed(place[row])
        sim.malloc(failure.requested, failure.stream, snapshot.pools[failure.pool])
    except SimulatedOutOfMemoryError:
        return False
    return True
