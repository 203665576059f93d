"""All analyses of one snapshot together: what `summary` prints and the report shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapana.allocator.replay import Coverage
from snapana.analyses.churn import Churn, churn
from snapana.analyses.fragmentation import Fragmentation, fragmentation
from snapana.analyses.leaks import Leaks, leaks
from snapana.analyses.oom import OutOfMemory, out_of_memory
from snapana.analyses.peak import Peak, peak
from snapana.analyses.steps import Steps, steps
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot


@dataclass(frozen=True)
class Totals:
    """Bytes of one device at the end of the window."""

    allocated: int
    active: int
    requested: int
    reserved: int


@dataclass(frozen=True)
class DeviceOverview:
    """What one device did; every part is described where it is computed.

    Attributes:
        device: ordinal.
        coverage: what the window holds.
        peak: the highest ``allocated``.
        peak_reserved_event: event of the highest ``reserved``, -1 before the first.
        peak_reserved_us: its time, None if not recorded.
        peak_reserved: its bytes.
        end: totals after the last event.
        fragmentation: at the highest ``reserved``.
        steps: training steps.
        leaks: sites that grow.
        oom: failed allocations.
        churn: segments made and given back.

    """

    device: int
    coverage: Coverage
    peak: Peak
    peak_reserved_event: int
    peak_reserved_us: int | None
    peak_reserved: int
    end: Totals
    fragmentation: Fragmentation
    steps: Steps
    leaks: Leaks
    oom: list[OutOfMemory]
    churn: Churn

    @property
    def fatal_oom(self) -> OutOfMemory | None:
        """The last failed allocation of the window."""
        return self.oom[-1] if self.oom else None


@dataclass(frozen=True)
class Overview:
    """One snapshot, analysed."""

    snapshot: Snapshot
    devices: tuple[DeviceOverview, ...]


def overview(
    snapshot: Snapshot, *, device: int | None = None, progress: Callable[[str], None] = lambda text: None
) -> Overview:
    """Run every analysis.

    Args:
        snapshot: the file.
        device: one device only; by default all that have events or segments.
        progress: told what is being done.

    Raises:
        SnapanaError: ``usage.device`` where the file knows no such device.

    """
    if device is not None and device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices))
        raise SnapanaError("usage.device", f"{snapshot.info.name} has no device {device}.", f"It has: {known}.")
    progress("Replaying the allocator")
    chosen = snapshot.devices if device is None else (device,)
    return Overview(snapshot, tuple(_device(snapshot, number, progress) for number in chosen))


def _device(snapshot: Snapshot, device: int, progress: Callable[[str], None]) -> DeviceOverview:
    replay = snapshot.replay[device]
    progress(f"Analysing device {device}")
    found = steps(snapshot, device)
    cache = fragmentation(snapshot, device)
    last = replay.curves.iloc[-1]
    return DeviceOverview(
        device=device,
        coverage=replay.coverage,
        peak=peak(snapshot, device),
        peak_reserved_event=cache.event,
        peak_reserved_us=replay.time_us(cache.event),
        peak_reserved=cache.reserved,
        end=Totals(int(last["allocated"]), int(last["active"]), int(last["requested"]), int(last["reserved"])),
        fragmentation=cache,
        steps=found,
        leaks=leaks(snapshot, device, found),
        oom=out_of_memory(snapshot, device),
        churn=churn(snapshot, device, found),
    )
