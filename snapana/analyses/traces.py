"""All analyses of one profiler trace together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from snapana.analyses.askers import Askers, askers
from snapana.analyses.categories import categories_at, categorise
from snapana.analyses.choices import TRACE_GROUPS
from snapana.analyses.copies import copies
from snapana.analyses.cost import cost
from snapana.analyses.failure import Facts
from snapana.analyses.instants import find_instant
from snapana.analyses.join import Join, join, joined_codes
from snapana.analyses.leaks import leaks
from snapana.analyses.logits import logits
from snapana.analyses.overview import DeviceOverview, Overview, Profile, Totals, available, chosen_devices
from snapana.analyses.peak import instant
from snapana.analyses.rules import Rule
from snapana.analyses.steps import steps
from snapana.analyses.trend import step_course
from snapana.analyses.waiting import waiting
from snapana.trace.memory import CPU_DEVICE, Attribution, TraceMemory, build_memory
from snapana.trace.model import IntArray, Trace
from snapana.units import known


def trace_overview(
    trace: Trace,
    *,
    device: int | None = None,
    at: str | None = None,
    facts: Facts | None = None,
    step: str | None = None,
    rules: Sequence[Rule] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> Overview:
    """Run every analysis that a trace allows: see ``overview`` for the arguments.

    Raises:
        SnapanaError: ``usage.device``, ``usage.at``, ``usage.step``.

    """
    progress("Attributing memory")
    built = build_memory(trace)
    chosen = chosen_devices(built.snapshot, device)
    found = []
    moments = available(at, chosen, lambda number, name: find_instant(built.snapshot, number, name))
    marks = available(step, chosen, lambda number, name: steps(built.snapshot, number, name))
    for number in chosen:
        progress(f"Analysing device {number}")
        found.append(_device(trace, built, number, moments[number], marks[number], rules))
    return Overview(built.snapshot, tuple(found), facts or Facts(), trace)


def _device(
    trace: Trace, built: TraceMemory, device: int, at: str | None, step: str | None, rules: Sequence[Rule]
) -> DeviceOverview:
    snapshot = built.snapshot
    replay = snapshot.replay[device]
    found = steps(snapshot, device, step)
    codes = categorise(snapshot, device, rules)
    growing = leaks(snapshot, device, found)
    moment = find_instant(snapshot, device, at or "peak")
    live = instant(snapshot, device, moment.event, codes)
    fullest = find_instant(snapshot, device, "peak_reserved")
    reserved = known(int(replay.curves["reserved"].iloc[fullest.event + 1]))
    last = replay.curves.iloc[-1]
    kinds = categories_at(snapshot, device, moment.event, codes)
    total = next((one.total_memory for one in trace.devices if one.device == device), None)
    return DeviceOverview(
        device=device,
        coverage=replay.coverage,
        peak=live,
        at=moment.name,
        peak_reserved_event=fullest.event,
        peak_reserved_us=replay.time_us(fullest.event),
        peak_reserved=reserved,
        end=Totals(int(last["allocated"]), None, None, known(int(last["reserved"]))),
        waiting=waiting(snapshot, device),
        logits=logits(snapshot, device, moment.event),
        steps=found,
        leaks=growing,
        categories=kinds,
        failed_categories=kinds,
        codes=codes,
        copies=copies(snapshot, device, moment.event, codes),
        largest_so_far=False,
        kept_gradients=0,
        leaks_of_forward=[],
        step_course=step_course(found, growing, None if total is None or reserved is None else total - reserved),
        oom=[],
        oom_events=int((replay.events["action"] == "oom").sum()),
        space=None,
        profile=Profile(
            device_type=built.device_type[device],
            cost=None if device == CPU_DEVICE else cost(trace, device, found, replay.curves, replay.events),
            askers={what: asked_by(built, device, what, moment.event) for what in TRACE_GROUPS},
            lost_bytes=built.lost_bytes[device],
            failures=_failures(built, device),
            total_memory=total,
        ),
    )


def asked_by(built: TraceMemory, device: int, what: str, event: int) -> Askers:
    """Sum traffic by operator, module, function, annotation or forward operator; ``event`` is the instant."""
    lives, who = built.snapshot.replay[device].allocations, built.attribution[device]
    born = lives["alloc"].to_numpy()
    code = np.where(born < 0, -2, np.append(_column(who, what), -2)[born])
    return askers(lives, code, who.names, event, "(before the trace)")


def with_trace(results: Overview, trace: Trace, progress: Callable[[str], None] = lambda text: None) -> Overview:
    """Add to a snapshot's results what a trace of the same run knows: operators, modules, cost.

    Raises:
        SnapanaError: ``join.different_runs``, ``join.no_device``.

    """
    progress("Joining snapshot and trace")
    built = build_memory(trace)
    devices, joins = [], []
    for device in results.devices:
        if device.device not in built.device_type and len(results.devices) > 1:
            devices.append(device)
            continue
        found = join(results.snapshot, trace, built, device.device)
        joins.append(found)
        devices.append(replace(device, profile=_joined_profile(results, trace, built, device, found)))
    return replace(results, devices=tuple(devices), joins=tuple(joins))


def _joined_profile(
    results: Overview, trace: Trace, built: TraceMemory, device: DeviceOverview, found: Join
) -> Profile:
    number = device.device
    who, replay = built.attribution[number], built.snapshot.replay[number]
    lives = results.snapshot.replay[number].allocations

    def asked(what: str) -> Askers:
        code = joined_codes(results.snapshot, found, _column(who, what))
        return askers(lives, code, who.names, device.peak.event, "(outside the trace)")

    return Profile(
        device_type=built.device_type[number],
        cost=cost(trace, number, steps(built.snapshot, number), replay.curves, replay.events),
        askers={what: asked(what) for what in TRACE_GROUPS},
        lost_bytes=built.lost_bytes[number],
        failures=_failures(built, number).iloc[:0],
        total_memory=next((one.total_memory for one in trace.devices if one.device == number), None),
    )


def _column(who: Attribution, what: str) -> IntArray:
    columns = {
        "operator": who.operator,
        "module": who.module,
        "function": who.function,
        "annotation": who.annotation,
        "forward_operator": who.forward,
    }
    return columns[what]


def _failures(built: TraceMemory, device: int) -> pd.DataFrame:
    replay = built.snapshot.replay[device]
    events = replay.events
    at = np.flatnonzero((events["action"] == "oom").to_numpy())
    curves = replay.curves.iloc[at + 1]
    return pd.DataFrame(
        {
            "event": at,
            "time_us": events["time_us"].to_numpy()[at],
            "requested": events["size"].to_numpy()[at],
            "allocated": curves["allocated"].to_numpy(),
            "reserved": curves["reserved"].to_numpy(),
            "stack": events["stack"].to_numpy()[at],
        }
    )
