"""All analyses of one snapshot together: what `summary` prints and the report shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from snapana.allocator.replay import Coverage
from snapana.analyses.card import CardUse, card_use
from snapana.analyses.churn import Churn, churn
from snapana.analyses.failure import Facts, OutOfMemory
from snapana.analyses.fragmentation import Fragmentation, course, fragmentation
from snapana.analyses.instants import Instant, find_instant
from snapana.analyses.leaks import Leaks, leaks
from snapana.analyses.logits import Logits, logits
from snapana.analyses.oom import out_of_memory
from snapana.analyses.peak import Peak, instant
from snapana.analyses.steps import Steps, steps
from snapana.analyses.waiting import Waiting, waiting
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
        peak: the highest ``allocated``, or the instant that was asked for.
        at: name of that instant: ``peak`` unless asked otherwise.
        peak_reserved_event: event of the highest ``reserved``, -1 before the first.
        peak_reserved_us: its time, None if not recorded.
        peak_reserved: its bytes.
        end: totals after the last event.
        fragmentation: at the highest ``reserved``, or the instant that was asked for.
        course: of fragmentation over the window: see ``fragmentation.course``.
        view: the instant that the map and the card show: what was asked for, the last failure, or peak reserved.
        card: the whole card at that instant.
        waiting: what waited for other streams when most did.
        logits: what the loss held at the peak, or at the last failure; None where nothing is known of one.
        steps: training steps.
        leaks: sites that grow.
        oom: failed allocations; of very many the last.
        oom_events: how many failed in the window.
        churn: segments made and given back.

    """

    device: int
    coverage: Coverage
    peak: Peak
    at: str
    peak_reserved_event: int
    peak_reserved_us: int | None
    peak_reserved: int
    end: Totals
    fragmentation: Fragmentation
    course: pd.DataFrame
    view: Fragmentation
    card: CardUse
    waiting: Waiting
    logits: Logits | None
    steps: Steps
    leaks: Leaks
    oom: list[OutOfMemory]
    oom_events: int
    churn: Churn

    @property
    def fatal_oom(self) -> OutOfMemory | None:
        """The last failed allocation of the window; ``fatal`` says whether the program went on."""
        return self.oom[-1] if self.oom else None


@dataclass(frozen=True)
class Overview:
    """One snapshot, analysed.

    Attributes:
        snapshot: the file.
        devices: results of each.
        facts: what was known besides the file.

    """

    snapshot: Snapshot
    devices: tuple[DeviceOverview, ...]
    facts: Facts


def overview(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    at: str | None = None,
    facts: Facts | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Overview:
    """Run every analysis.

    Args:
        snapshot: the file.
        device: one device only; by default all that have events or segments.
        at: instant of peak and fragmentation, see ``find_instant``; by default ``peak`` and ``peak_reserved``.
        facts: what is known besides the file: the card's size, a limit, PyTorch's messages.
        progress: told what is being done.

    Raises:
        SnapanaError: ``usage.device`` where the file knows no such device, ``usage.at`` where it has no such instant.

    """
    if device is not None and device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices))
        raise SnapanaError("usage.device", f"{snapshot.info.name} has no device {device}.", f"It has: {known}.")
    progress("Replaying the allocator")
    chosen = snapshot.devices if device is None else (device,)
    facts = facts or Facts()
    return Overview(snapshot, tuple(_device(snapshot, number, at, facts, progress) for number in chosen), facts)


def _device(
    snapshot: Snapshot, device: int, at: str | None, facts: Facts, progress: Callable[[str], None]
) -> DeviceOverview:
    replay = snapshot.replay[device]
    progress(f"Analysing device {device}")
    found = steps(snapshot, device)
    at_peak = find_instant(snapshot, device, at or "peak")
    live = instant(snapshot, device, at_peak.event)
    fullest = find_instant(snapshot, device, "peak_reserved")
    cache = _fragmentation(snapshot, device, find_instant(snapshot, device, at or "peak_reserved"))
    failures = out_of_memory(snapshot, device, facts)
    failed = failures[-1] if failures else None
    view = failed.cache if failed is not None and failed.cache is not None and at is None else cache
    shown = failed if failed is not None and failed.event == view.event else None
    last = replay.curves.iloc[-1]
    return DeviceOverview(
        device=device,
        coverage=replay.coverage,
        peak=live,
        at=at_peak.name,
        peak_reserved_event=fullest.event,
        peak_reserved_us=replay.time_us(fullest.event),
        peak_reserved=int(replay.curves["reserved"].iloc[fullest.event + 1]),
        end=Totals(int(last["allocated"]), int(last["active"]), int(last["requested"]), int(last["reserved"])),
        fragmentation=cache,
        course=course(snapshot, device),
        view=view,
        card=card_use(view, instant(snapshot, device, view.event), facts, shown),
        waiting=waiting(snapshot, device),
        logits=logits(snapshot, device, at_peak.event if failed is None else failed.event),
        steps=found,
        leaks=leaks(snapshot, device, found),
        oom=failures,
        oom_events=int((replay.events["action"] == "oom").sum()),
        churn=churn(snapshot, device, found),
    )


def _fragmentation(snapshot: Snapshot, device: int, moment: Instant) -> Fragmentation:
    return fragmentation(snapshot, device, moment.event, moment.name)
