"""All analyses of one snapshot together: what `summary` prints and the report shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.replay import Coverage
from snapana.analyses.askers import Askers
from snapana.analyses.card import CardUse, card_use
from snapana.analyses.categories import Categories, categories_at, categorise, kept_gradients
from snapana.analyses.churn import Churn, churn
from snapana.analyses.copies import Copy, copies
from snapana.analyses.cost import Cost
from snapana.analyses.failure import Facts, OutOfMemory, all_facts
from snapana.analyses.fragmentation import Fragmentation, course, fragmentation
from snapana.analyses.instants import Instant, find_instant
from snapana.analyses.join import Join
from snapana.analyses.leaks import Leaks, leaks
from snapana.analyses.logits import Logits, logits
from snapana.analyses.oom import out_of_memory
from snapana.analyses.peak import Peak, instant
from snapana.analyses.phases import stack_traits
from snapana.analyses.rules import Rule
from snapana.analyses.sites import site_codes
from snapana.analyses.steps import Steps, steps
from snapana.analyses.trend import Course, step_course
from snapana.analyses.waiting import Waiting, waiting
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot
from snapana.trace.model import Trace


@dataclass(frozen=True)
class Totals:
    """Bytes of one device at the end of the window; None where unknown."""

    allocated: int
    active: int | None
    requested: int | None
    reserved: int | None


@dataclass(frozen=True)
class Space:
    """What only a snapshot tells, since it has segments.

    Attributes:
        fragmentation: at the highest ``reserved``, or the instant that was asked for.
        fullest: at the highest ``reserved``, whatever was asked for: findings judge the whole window.
        course: of fragmentation over the window: see ``fragmentation.course``.
        view: the instant that the map and the card show: what was asked for, the last failure, or peak reserved.
        card: the whole card at that instant.
        churn: segments made and given back.

    """

    fragmentation: Fragmentation
    fullest: Fragmentation
    course: pd.DataFrame
    view: Fragmentation
    card: CardUse
    churn: Churn


@dataclass(frozen=True)
class Profile:
    """What only a profiler trace tells.

    Attributes:
        device_type: ``c10::DeviceType``: 0 is the CPU, 1 CUDA, 6 HIP, 12 XPU, 20 a private one.
        cost: time in the runtime's memory calls; None for the CPU.
        askers: who asked for memory, by ``operator``, ``module`` (``nn.Module``) and ``forward_operator`` (whose
            backward pass asked).
        lost_bytes: by which totals differ from the sum of the events.
        failures: failed allocations: ``event``, ``time_us``, ``requested``, ``allocated``, ``reserved``, ``stack``.
        total_memory: of the card, None if not given.

    """

    device_type: int
    cost: Cost | None
    askers: dict[str, Askers]
    lost_bytes: int
    failures: pd.DataFrame
    total_memory: int | None


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
        peak_reserved: its bytes; None on the CPU.
        end: totals after the last event.
        waiting: what waited for other streams when most did.
        logits: what the loss held at the peak, or at the last failure; None where nothing is known of one.
        steps: training steps.
        leaks: sites that grow.
        categories: what is allocated at the instant of ``peak``, by category.
        failed_categories: likewise at the last failure; the same where nothing failed.
        codes: category of each allocation: see ``categorise``.
        copies: lines that hold a second copy of the parameters at that instant.
        largest_so_far: whether the step that failed last asked for a larger block than any before it.
        kept_gradients: bytes of gradients at that instant that an optimizer step before it has used already.
        leaks_of_forward: codes of the leaking sites that lie within the forward pass of modules, or its loss.
        step_course: how memory goes on from step to step; None with fewer than three.
        oom: failed allocations; of very many the last.
        oom_events: how many failed in the window.
        space: what depends on segments; None for a trace.
        profile: what only a trace tells; None for a snapshot.

    """

    device: int
    coverage: Coverage
    peak: Peak
    at: str
    peak_reserved_event: int
    peak_reserved_us: int | None
    peak_reserved: int | None
    end: Totals
    waiting: Waiting
    logits: Logits | None
    steps: Steps
    leaks: Leaks
    categories: Categories
    failed_categories: Categories
    codes: npt.NDArray[np.int64]
    copies: list[Copy]
    largest_so_far: bool
    kept_gradients: int
    leaks_of_forward: list[int]
    step_course: Course | None
    oom: list[OutOfMemory]
    oom_events: int
    space: Space | None
    profile: Profile | None = None

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
        trace: the trace that the model was made from; None for a snapshot.
        joins: by device, how a trace given beside the snapshot fits it.
        redacted: how many different things of each kind were replaced; None where nothing was to be.

    """

    snapshot: Snapshot
    devices: tuple[DeviceOverview, ...]
    facts: Facts
    trace: Trace | None = None
    joins: tuple[Join, ...] = ()
    redacted: dict[str, int] | None = None

    @property
    def events(self) -> int:
        """Entries of the file: all of a trace, also those that say nothing of memory."""
        return len(self.snapshot.events) if self.trace is None else self.trace.events


def overview(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    at: str | None = None,
    facts: Facts | None = None,
    step: str | None = None,
    rules: Sequence[Rule] = (),
    codes: Mapping[int, npt.NDArray[np.int64]] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Overview:
    """Run every analysis.

    Args:
        snapshot: the file.
        device: one device only; by default all that have events or segments.
        at: instant of peak and fragmentation, see ``find_instant``; by default ``peak`` and ``peak_reserved``.
        facts: what is known besides the file: the card's size, a limit, PyTorch's messages.
        step: annotation whose ranges are steps; by default what ``steps`` finds.
        rules: of the user, for categories.
        codes: categories by device, as of ``categorise``, where they are known already.
        progress: told what is being done.

    Raises:
        SnapanaError: ``usage.device`` where the file knows no such device, ``usage.at`` where it has no such instant,
            ``usage.step`` where it has no such annotation.

    """
    chosen = chosen_devices(snapshot, device)
    progress("Replaying the allocator")
    facts = all_facts(snapshot, facts)
    found = []
    moments = available(at, chosen, lambda number, name: find_instant(snapshot, number, name))
    marks = available(step, chosen, lambda number, name: steps(snapshot, number, name))
    for number in chosen:
        progress(f"Analysing device {number}")
        known = None if codes is None else codes[number]
        known = categorise(snapshot, number, rules) if known is None else known
        found.append(_device(snapshot, number, moments[number], facts, marks[number], known))
    return Overview(snapshot, tuple(found), facts)


def chosen_devices(snapshot: Snapshot, device: int | None) -> tuple[int, ...]:
    """Give the device that was asked for, or all.

    Raises:
        SnapanaError: ``usage.device`` where the file knows no such device.

    """
    if device is None:
        return snapshot.devices
    if device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices)) or "none"
        raise SnapanaError("usage.device", f"{snapshot.info.name} has no device {device}.", f"It has: {known}.")
    return (device,)


def with_history(snapshot: Snapshot, device: int | None) -> tuple[int, ...]:
    """Give the device that was asked for, or all that allocations were recorded of; all where there are none.

    Raises:
        SnapanaError: ``usage.device`` where the file knows no such device.

    """
    chosen = chosen_devices(snapshot, device)
    known = tuple(one for one in chosen if bool((snapshot.replay[one].allocations["alloc"] >= 0).any()))
    return known if known and device is None else chosen


def available(wanted: str | None, devices: Sequence[int], find: Callable[[int, str], object]) -> dict[int, str | None]:
    """Give for each device what was asked for where the device has it, else None: only if none has it that fails.

    Raises:
        SnapanaError: of the first device.

    """
    found: dict[int, str | None] = dict.fromkeys(devices)
    failed: list[SnapanaError] = []
    for number in devices if wanted is not None else ():
        try:
            find(number, str(wanted))
            found[number] = wanted
        except SnapanaError as error:
            failed.append(error)
    if failed and len(failed) == len(devices):
        raise failed[0]
    return found


def _device(
    snapshot: Snapshot,
    device: int,
    at: str | None,
    facts: Facts,
    step: str | None,
    codes: npt.NDArray[np.int64],
) -> DeviceOverview:
    replay = snapshot.replay[device]
    found = steps(snapshot, device, step)
    growing = leaks(snapshot, device, found)
    at_peak = find_instant(snapshot, device, at or "peak")
    live = instant(snapshot, device, at_peak.event, codes)
    fullest = find_instant(snapshot, device, "peak_reserved")
    cache = _fragmentation(snapshot, device, find_instant(snapshot, device, at or "peak_reserved"))
    failures = out_of_memory(snapshot, device, facts, codes)
    failed = failures[-1] if failures else None
    view = failed.cache if failed is not None and failed.cache is not None and at is None else cache
    shown = failed if failed is not None and failed.event == view.event else None
    reserved = int(replay.curves["reserved"].iloc[fullest.event + 1])
    last = replay.curves.iloc[-1]
    return DeviceOverview(
        device=device,
        coverage=replay.coverage,
        peak=live,
        at=at_peak.name,
        peak_reserved_event=fullest.event,
        peak_reserved_us=replay.time_us(fullest.event),
        peak_reserved=reserved,
        end=Totals(int(last["allocated"]), int(last["active"]), int(last["requested"]), int(last["reserved"])),
        waiting=waiting(snapshot, device),
        logits=logits(snapshot, device, at_peak.event if failed is None else failed.event),
        steps=found,
        leaks=growing,
        categories=categories_at(snapshot, device, at_peak.event, codes),
        failed_categories=categories_at(snapshot, device, at_peak.event if failed is None else failed.event, codes),
        codes=codes,
        copies=copies(snapshot, device, at_peak.event, codes),
        largest_so_far=failed is not None and _largest_so_far(snapshot, device, found, failed),
        kept_gradients=kept_gradients(snapshot, device, at_peak.event, codes),
        leaks_of_forward=_within_forward(snapshot, device, growing),
        step_course=step_course(found, growing, _room(facts, device, reserved, failed)),
        oom=failures,
        oom_events=int((replay.events["action"] == "oom").sum()),
        space=Space(
            fragmentation=cache,
            fullest=cache if at is None else _fragmentation(snapshot, device, fullest),
            course=course(snapshot, device),
            view=view,
            card=card_use(view, categories_at(snapshot, device, view.event, codes), facts, shown, device),
            churn=churn(snapshot, device, found),
        ),
    )


def _fragmentation(snapshot: Snapshot, device: int, moment: Instant) -> Fragmentation:
    return fragmentation(snapshot, device, moment.event, moment.name)


def _room(facts: Facts, device: int, reserved: int, failed: OutOfMemory | None) -> int | None:
    """Give the bytes that may still be reserved above the highest so far; None where unknown, or once it ran out."""
    if failed is not None and failed.fatal:
        return None
    card = facts.card_of(device)
    if card is not None and facts.messages and failed is None:
        # What others and libraries held when PyTorch wrote its message.
        last = facts.messages[-1]
        taken = (last.others_total or 0) + (last.outside or 0) if last.device in {None, device} else 0
        card -= taken
    limits = [size for size in (facts.limit_of(device), card) if size is not None]
    return max(0, min(limits) - reserved) if limits else None


def _within_forward(snapshot: Snapshot, device: int, found: Leaks) -> list[int]:
    """Give the leaking sites most of whose survivors were made within a module, or within the loss."""
    lives = snapshot.replay[device].allocations
    sites = site_codes(snapshot, lives)
    traits = stack_traits(snapshot)
    within = traits.module | traits.functional
    alive = lives["free_requested"].to_numpy() == -1
    chosen = []
    for code in found.table["code"].tolist():
        own = alive & (sites == code)
        if own.any() and float(within[lives["stack"].to_numpy()[own]].mean()) > 0.5:
            chosen.append(int(code))
    return chosen


def _largest_so_far(snapshot: Snapshot, device: int, found: Steps, failed: OutOfMemory) -> bool:
    """Whether the step of a failure asked for a larger block than any step before it."""
    ends = found.table["end_event"].to_numpy(dtype=np.int64)
    before = ends[ends < failed.event]
    if not len(before):
        return False
    lives = snapshot.replay[device].allocations
    born, size = lives["alloc"].to_numpy(), lives["requested"].to_numpy()
    own = size[(born > before[-1]) & (born < failed.event)]
    earlier = size[(born >= 0) & (born <= before[-1])]
    return max(int(own.max(initial=0)), failed.requested) > int(earlier.max(initial=0))
