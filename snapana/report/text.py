"""Results for a terminal, as rich tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from snapana.analyses.dims import as_product
from snapana.analyses.failure import OutOfMemory
from snapana.analyses.groups import group_at
from snapana.analyses.hints import hints
from snapana.analyses.oom_message import Explanation
from snapana.analyses.overview import DeviceOverview, Overview, Profile
from snapana.analyses.peak import Peak
from snapana.analyses.pins import Age, pin_age
from snapana.findings import VERDICT_WORDS, Finding, verdict
from snapana.frames import rows
from snapana.report.select import Selection, limited, top_sites, with_others
from snapana.report.terminal import plain_console, text_table, write_heading
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes, format_count

_STYLE = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_summary(results: Overview, found: list[Finding], selection: Selection) -> None:
    """Print the whole summary on stdout."""
    console = plain_console()
    snapshot = results.snapshot
    console.print(
        Text(f"{snapshot.info.name}: {format_count(results.events)} events, written by {snapshot.generation}")
    )
    for device in _gpus_first(results):
        write_heading(console, _name(device) if len(results.devices) > 1 else "Verdict")
        if device.device < 0 and len(results.devices) > 1:
            peak, end = format_bytes(device.peak.allocated), format_bytes(device.end.allocated)
            console.print(Text(f"Peak {peak} since the profiler began, {end} at the end; --device -1 shows more."))
            continue
        answer = verdict(device, found)
        console.print(Text(answer.title, style="bold"))
        for line in (answer.filled, answer.cause, answer.action):
            if line:
                console.print(Text(line))
        _card(console, device)
        if device.profile is not None:
            _profile(console, device.profile, selection)
        for name in ("peak", "fragmentation", "leaks", "oom"):
            _PARTS[name](console, snapshot, device, selection)
        _window(console, device)
    _recording(console, results)
    if found:
        write_heading(console, "Findings")
    for finding in found:
        console.print(Text(f"{finding.severity:<7}", style=_STYLE[finding.severity]), end="")
        console.print(Text(f"{finding.code}  {finding.message}"))
        if finding.advice:
            console.print(Text(f"        {finding.advice}", style="dim"))


def _recording(console: Console, results: Overview) -> None:
    """Say what was noted beside the file, and what a better recording would tell."""
    sidecar = results.snapshot.sidecar
    open_questions = hints(results)
    if sidecar is None and not open_questions:
        return
    write_heading(console, "The recording")
    if sidecar is not None:
        rank = "" if sidecar.rank is None else f", rank {sidecar.rank}"
        cards = ", ".join(f"{one.name} {format_bytes(one.total)}" for one in sidecar.devices)
        console.print(Text(f"torch {sidecar.torch}, {cards}{rank}; written: {sidecar.reason}"))
    for hint in open_questions:
        console.print(Text(f"- {hint.message}"))
    if open_questions:
        console.print(Text("snapana howto has code to paste.", style="dim"))


def print_part(results: Overview, name: str, selection: Selection) -> None:
    """Print one part, ``peak``, ``fragmentation``, ``leaks`` or ``oom``, of every device."""
    console = plain_console()
    for device in _gpus_first(results):
        if len(results.devices) > 1:
            write_heading(console, _name(device))
        _PARTS[name](console, results.snapshot, device, selection)


def _gpus_first(results: Overview) -> list[DeviceOverview]:
    return sorted(results.devices, key=lambda device: device.device < 0)


def _name(device: DeviceOverview) -> str:
    return "CPU" if device.device < 0 else f"Device {device.device}"


def _sites(console: Console, live: Peak, selection: Selection) -> None:
    shown, others = top_sites(live.sites, selection)
    total = max(live.allocated, 1)
    body = [
        (
            format_bytes(row.bytes),
            f"{row.bytes / total:.1%}",
            format_count(row.blocks),
            row.site + products(row, selection),
        )
        for row in rows(shown)
    ]
    body.append((format_bytes(others), f"{others / total:.1%}", "", f"others ({len(live.sites) - len(shown)} sites)"))
    body.append((format_bytes(live.allocated), "100.0%" if live.allocated else "", "", "allocated"))
    console.print(text_table([("bytes", True), ("share", True), ("blocks", True), ("site", False)], body, foot=2))


def products(row: Any, selection: Selection) -> str:
    """Write the size of a site's largest block as a product of the model's dimensions, where it is one."""
    written = as_product(int(row.largest), selection.dims) if selection.dims else None
    return "" if written is None else f"  ({format_bytes(int(row.largest))} = {written})"


def _peak(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    write_heading(console, "Peak" if device.at == "peak" else f"Allocated, at {device.at.replace('_', ' ')}")
    live = device.peak
    console.print(
        Text(
            f"{format_bytes(live.allocated)} allocated at event {format_count(live.event)}, "
            + (f"{format_bytes(live.requested)} requested, " if live.requested is not None else "")
            + (f"{format_bytes(live.reserved)} reserved; " if live.reserved is not None else "")
            + (f"highest reserved {format_bytes(device.peak_reserved)}, " if device.peak_reserved is not None else "")
            + f"at the end {format_bytes(device.end.allocated)} allocated."
        )
    )
    shares = [f"{name} {format_bytes(size)}" for name, size in device.categories.bytes.items() if size]
    if shares:
        console.print(Text(f"By category: {', '.join(shares)}."))
    _sites(console, live, selection)


def _fragmentation(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    if device.space is None:
        write_heading(console, "Fragmentation")
        console.print(Text("A profiler trace does not tell how memory is laid out: record a snapshot as well."))
        return
    cache = device.space.fragmentation
    write_heading(console, f"Fragmentation, at {cache.at.replace('_', ' ')}")
    used = f", utilization {cache.utilization:.1%}" if cache.utilization is not None else ""
    console.print(Text(f"{format_bytes(cache.reserved)} reserved, {format_bytes(cache.cached)} of it cached{used}."))
    console.print(
        Text(
            f"{format_bytes(cache.releasable)} releasable, {format_bytes(cache.unreleasable)} unreleasable, "
            f"{format_bytes(cache.pool_held)} held by private pools; {format_bytes(cache.internal_waste)} lost to "
            "rounding."
        )
    )
    body = [
        (
            format_bytes(row.reserved),
            format_bytes(row.free),
            format_bytes(row.largest_hole),
            f"{row.external:.0%}" if row.free else "-",
            f"{snapshot.pools[row.pool]} stream {row.stream} {row.size_class}",
        )
        for row in rows(cache.pools)
    ]
    columns = [
        ("reserved", True),
        ("free", True),
        ("largest hole", True),
        ("external", True),
        ("pool", False),
    ]
    console.print(text_table(columns, body))
    pins = limited(cache.pins, selection)
    if len(pins):
        console.print()
        kept = [
            (
                format_bytes(row.pinned),
                format_count(row.segments),
                format_count(row.blocks),
                format_bytes(row.block_bytes),
                _age(pin_age(snapshot, device.device, device.steps, cache, int(row.born))),
                row.site,
            )
            for row in rows(pins)
        ]
        columns = [
            ("keeps", True),
            ("segments", True),
            ("with blocks", True),
            ("of", True),
            ("oldest", True),
            ("pinned by", False),
        ]
        console.print(text_table(columns, kept))
    if len(device.space.course):
        console.print(Text(_course(device.space.course)))


def _age(age: Age) -> str:
    if age.events is None:
        return "before the window"
    if age.steps:
        return f"{age.steps} steps"
    return f"{age.us / 1e6:.3g} s" if age.us is not None else f"{format_count(age.events)} events"


def _course(course: pd.DataFrame) -> str:
    """Say in a line how fragmentation went on over the window."""
    used = course["utilization"].dropna()
    if not len(used):
        return "Nothing was reserved in the window."
    worst = course.iloc[int(course["unreleasable"].to_numpy().argmax())]
    return (
        f"Over the window utilization went from {used.iloc[0]:.0%} to {used.iloc[-1]:.0%}; most was unreleasable at "
        f"event {format_count(int(worst['event']))}: {format_bytes(int(worst['unreleasable']))}, with a largest hole "
        f"of {format_bytes(int(worst['largest_hole']))}."
    )


def _leaks(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    write_heading(console, "Growth")
    found = device.leaks
    for line in course_lines(device):
        console.print(Text(line))
    if not found.judged:
        console.print(
            Text(
                f"Not judged: {len(device.steps)} steps found, four are needed. Steps come from Optimizer.step and "
                "ProfilerStep marks, from --step NAME, or from what repeats."
            )
        )
        return
    if not len(found.table):
        console.print(Text(f"No site leaks over {found.steps} steps ({found.source})."))
    else:
        body = [
            (
                format_bytes(row.bytes_per_step),
                f"{row.blocks_per_step:.3g}",
                format_bytes(row.block_bytes_per_step),
                f"{row.confidence:.0%}",
                row.site + (f"; usually freed at {row.freed_at}" if row.freed_at else ""),
            )
            for row in rows(found.table)
        ]
        columns = [
            ("requested a step", True),
            ("blocks a step", True),
            ("occupied a step", True),
            ("confidence", True),
            ("site", False),
        ]
        console.print(text_table(columns, body))
    kept = limited(found.retained, selection)
    if len(kept):
        console.print(Text("Kept over steps, but no leak", style="underline"))
        others = [
            (format_bytes(row.requested), format_count(row.blocks), KIND_WORDS[row.kind], row.site)
            for row in rows(kept)
        ]
        console.print(text_table([("requested", True), ("blocks", True), ("kind", False), ("site", False)], others))


KIND_WORDS = {
    "unsure": "grows, but the steps were guessed",
    "cache_bounded": "fills up, then stays or is replaced",
    "freed_late": "freed late, as by the garbage collector",
    "warm_up": "made in warm-up",
    "one_off": "made once or twice",
}


def course_lines(device: DeviceOverview) -> list[str]:
    """Write the lines that stand before any table of leaks."""
    course = device.step_course
    if course is None:
        return []
    sure = "" if device.steps.confidence >= 1 else f", found with {device.steps.confidence:.0%} confidence"
    lines = [f"{len(device.steps)} steps, by {device.steps.source}{sure}; warm-up takes {device.leaks.warm_up or 1}."]
    for trend in course.trends:
        span = format_bytes(trend.low) if trend.low == trend.high else f"{format_bytes(trend.low)} to "
        span += "" if trend.low == trend.high else format_bytes(trend.high)
        slope = f" by {format_bytes(trend.per_step)} a step" if trend.per_step else ""
        lines.append(f"{trend.name}: {trend.kind}{slope}, {span}")
    if course.varies and not len(device.leaks.table):
        lines.append(
            f"Not a leak: step ends are flat at {format_bytes(course.trends[0].high)}, step peaks vary "
            f"{course.ratio:.1f}x."
        )
    if course.projection is not None:
        lines.append(f"At this slope memory runs out in {format_count(course.projection)} steps.")
    return lines


def print_groups(results: Overview, by: str, selection: Selection) -> None:
    """Print what is allocated at the peak, or the instant asked for, by another grouping than the site."""
    console = plain_console()
    for device in _gpus_first(results):
        table = group_at(results.snapshot, device, by)
        if len(results.devices) > 1:
            write_heading(console, _name(device))
        live = device.peak
        write_heading(console, f"Allocated, at {device.at.replace('_', ' ')}, by {by.replace('_', ' ')}")
        shown, others = top_sites(table, selection)
        total = max(live.allocated, 1)
        body = [
            (
                format_bytes(row.bytes),
                f"{row.bytes / total:.1%}",
                format_bytes(row.requested),
                format_count(row.blocks),
                row.name,
            )
            for row in rows(shown)
        ]
        body.append((format_bytes(others), f"{others / total:.1%}", "", "", "others"))
        body.append((format_bytes(live.allocated), "100.0%" if live.allocated else "", "", "", "allocated"))
        columns = [
            ("bytes", True),
            ("share", True),
            ("requested", True),
            ("blocks", True),
            (by.replace("_", " "), False),
        ]
        console.print(text_table(columns, body, foot=2))


def _oom(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    write_heading(console, "Out of memory")
    if not device.oom:
        console.print(
            Text(
                "No failed allocation in the window. It would look the same if the file was written before the "
                "failure or by another process, if its ring has passed it, if recording began after it, or if not "
                "PyTorch's allocator failed but a library or the driver."
            )
        )
        return
    shown = device.oom if selection.top is None else device.oom[-selection.top :]
    if device.oom_events > len(shown):
        console.print(Text(f"{format_count(device.oom_events - len(shown))} earlier failures are left out."))
    for failure in shown:
        _failure(console, failure, selection)


def print_explanations(found: Sequence[Explanation]) -> None:
    """Print what messages alone say."""
    console = plain_console()
    for one in found:
        message = one.message
        device = "" if message.device is None else f", device {message.device}"
        console.print(Text(f"{message.backend} out of memory{device}: {VERDICT_WORDS[one.verdict]}", style="bold"))
        for reason in one.reasons:
            console.print(Text(f"- {reason}"))
    console.print(
        Text(
            "For what filled the card, record a snapshot: torch.cuda.memory._record_memory_history(max_entries=100000) "
            "before the model is built, torch.cuda.memory._dump_snapshot('profil_vram.pickle') where the error is "
            "caught; then snapana oom profil_vram.pickle --message LOG.",
            style="dim",
        )
    )


def _failure(console: Console, failure: OutOfMemory, selection: Selection) -> None:
    title = f"Event {format_count(failure.event)}: {VERDICT_WORDS[failure.verdict]}"
    console.print(Text(title + ("" if failure.fatal else " (the program went on)"), style="bold"))
    console.print(Text(f"Asked by {failure.site.label}."))
    for reason in failure.reasons:
        console.print(Text(f"- {reason}"))
    if failure.changes:
        console.print(Text("What would make it fit", style="underline"))
        body = [
            ("" if change.bytes is None else format_bytes(change.bytes), "yes" if change.enough else "no", change.what)
            for change in failure.changes
        ]
        console.print(text_table([("bytes", True), ("enough", False), ("change", False)], body))
    console.print(Text("Allocated at that moment", style="underline"))
    _sites(console, failure.live, selection)


def _profile(console: Console, profile: Profile, selection: Selection) -> None:
    found = profile.cost
    if found is not None and len(found.calls):
        write_heading(console, "Cost of memory management")
        share = "" if found.share is None else f"{found.share:.1%} of a steady step. "
        emptied = f"empty_cache() {format_count(found.emptied)} times, by {found.emptied_at}." if found.emptied else ""
        console.print(Text(f"{share}{emptied}"))
        body = [(f"{row.us / 1000:.3f} ms", format_count(int(row.count)), row.name) for row in rows(found.calls)]
        console.print(text_table([("time", True), ("calls", True), ("call", False)], body))
    for name in ("operator", "module"):
        table = profile.askers[name].table
        if not len(table):
            continue
        write_heading(console, f"By {name}")
        shown, others = with_others(table, selection)
        lines = [
            (
                format_bytes(row.at_peak),
                format_bytes(row.allocated),
                format_bytes(row.net),
                format_count(int(row.allocations)),
                row.name,
            )
            for row in (*shown, *([] if others is None else [others]))
        ]
        columns = [("at the peak", True), ("allocated", True), ("net", True), ("times", True), (name, False)]
        console.print(text_table(columns, lines))


def _card(console: Console, device: DeviceOverview) -> None:
    if device.space is None:
        return
    card = device.space.card
    write_heading(console, f"The card, at {card.at.replace('_', ' ')}")
    total = card.capacity
    body = [
        (
            format_bytes(part.bytes),
            "" if part.bytes is None or not total else f"{part.bytes / total:.1%}",
            part.name + (f" ({part.hint})" if part.hint else ""),
        )
        for part in card.parts
    ]
    body.append((format_bytes(total), "100.0%" if total else "", "the card"))
    console.print(text_table([("bytes", True), ("share", True), ("part", False)], body, foot=1))


def _window(console: Console, device: DeviceOverview) -> None:
    window = device.coverage
    write_heading(console, "Window")
    if window.complete:
        console.print(Text(f"Complete: {format_count(window.events)} events from the first allocation on."))
        return
    console.print(
        Text(
            f"{format_count(window.events)} events; {format_bytes(window.preexisting_bytes)} existed before, "
            f"{format_count(window.unmatched_frees)} frees without an allocation, "
            f"{format_count(window.replay_mismatches)} mismatches."
        )
    )


_PARTS = {"peak": _peak, "fragmentation": _fragmentation, "leaks": _leaks, "oom": _oom}
