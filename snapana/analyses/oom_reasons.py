"""Why an allocation failed, in words and figures."""

from __future__ import annotations

from snapana.allocator.layout import ALLOCATED, Layout
from snapana.allocator.rounding import SMALL_SIZE
from snapana.analyses.failure import Facts, OutOfMemory
from snapana.analyses.sites import by_site
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes, format_count


def reasons(snapshot: Snapshot, failure: OutOfMemory, layout: Layout, facts: Facts) -> list[str]:
    """Argue for the verdict of a failure.

    Args:
        snapshot: the file.
        failure: with its verdict.
        layout: of the same instant.
        facts: what is known besides the file.

    """
    found = [
        *_about_the_request(snapshot, failure, layout),
        *_about_own_holes(failure),
        *_about_stranded(snapshot, failure),
        *_about_what_was_tried(failure),
        *_about_the_driver(failure),
        *_about_the_rest_of_the_card(failure),
    ]
    if facts.card is not None and failure.card is not None and facts.card < failure.card:
        found.append(
            f"The size given for the card, {format_bytes(facts.card)}, is less than what was on it: "
            f"{format_bytes(failure.card)}."
        )
    if facts.messages and failure.message is None:
        last = facts.messages[-1]
        found.append(
            f"The message given is of another failure (it asks for {format_bytes(last.requested)}): only the card's "
            "size was taken from it."
        )
    if failure.message is not None and failure.message.private_free:
        found.append(
            f"PyTorch's message says {format_bytes(failure.message.printed_allocated)} allocated, with "
            f"{format_bytes(failure.message.private_free)} in private pools: those are free blocks of the pools, which "
            f"nothing uses. Tensors hold {format_bytes(failure.allocated)}."
        )
    return found


def _about_the_request(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[str]:
    asked, segment = format_bytes(failure.requested), format_bytes(failure.segment)
    if segment != asked:
        asked += f" ({segment} from the driver)"
    found = [
        f"{asked} was asked for; {format_bytes(failure.allocated)} was allocated and "
        f"{format_bytes(failure.reserved - failure.active)} of the {format_bytes(failure.reserved)} reserved was free."
    ]
    if failure.active != failure.allocated:
        found.append(
            f"{format_bytes(failure.active - failure.allocated)} more was freed, but still waited for another stream."
        )
    twins = _twins(snapshot, failure, layout)
    if failure.site.kind == "backward":
        found.append(
            f"The backward pass asked ({failure.site.function}): it runs on a thread of its own, without Python "
            f"lines.{twins}"
        )
    elif failure.site.kind == "none":
        found.append(f"The request has no stack: the backward pass runs on a thread without Python lines.{twins}")
    elif failure.site.kind != "user":
        found.append(f"The request's stack has no line of your code: {failure.site.label} asked.{twins}")
    if not failure.pool_recorded:
        found.append(
            "The file does not say which memory pool the request came from (files of PyTorch 2.12 and later do): the "
            "default pool is assumed."
            + (" A request from a private pool could use none of what follows." if failure.own_free else "")
        )
    return found


def _twins(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> str:
    """Name the lines that hold blocks of the very size asked for: most often the forward side of the request."""
    same = layout.ranges[
        (layout.ranges["state"] == ALLOCATED) & (layout.ranges["size"].sub(failure.requested).between(0, SMALL_SIZE))
    ]
    if not len(same) or failure.small:
        return ""
    lives = snapshot.replay[failure.device].allocations.iloc[same["life"].to_numpy()]
    sites = by_site(snapshot, lives)
    named = sites[sites["kind"] == "user"]
    named = named if len(named) else sites[sites["kind"] != "none"]
    if not len(named):
        return ""
    return f" Alive of this size: {count_blocks(len(same))}, among them from {named['site'].iloc[0]}."


def count_blocks(count: int) -> str:
    """Write ``1 block`` or ``7 blocks``."""
    return "1 block" if count == 1 else f"{format_count(count)} blocks"


def _about_own_holes(failure: OutOfMemory) -> list[str]:
    if failure.own_free >= failure.requested:
        return [
            f"{format_bytes(failure.own_free)} was free for this request, in holes of at most "
            f"{format_bytes(failure.largest_hole)}: contiguous, it would have fitted."
        ]
    if failure.own_free:
        return [
            f"The {format_bytes(failure.own_free)} of holes that this request may use could not have held it anyway "
            f"(largest {format_bytes(failure.largest_hole)}): this is not fragmentation."
        ]
    return []


def _about_stranded(snapshot: Snapshot, failure: OutOfMemory) -> list[str]:
    found = []
    if failure.pool_held or failure.other_streams:
        held = [f"{format_bytes(failure.pool_held)} is held by private pools"] if failure.pool_held else []
        if failure.other_streams:
            held.append(f"{format_bytes(failure.other_streams)} is kept in segments of other streams or pools")
        found.append(f"{' and '.join(held)}: free, but not for this request.")
    if failure.releasable:
        why = (
            "PyTorch releases nothing while a graph is captured or a MemPool is in use"
            if failure.pool != 0
            else "it lies in segments that were not released"
        )
        found.append(f"{format_bytes(failure.releasable)} in wholly free segments was not used either: {why}.")
    if failure.pool != 0:
        found.append(f"The request came from the private pool {snapshot.pools[failure.pool]}.")
    return found


def _about_what_was_tried(failure: OutOfMemory) -> list[str]:
    if not failure.released_before:
        return []
    return [
        f"Before giving up PyTorch had released {format_bytes(failure.released_before)} of wholly free segments to the "
        "driver; what was left could not be released."
    ]


def _about_the_driver(failure: OutOfMemory) -> list[str]:
    free, limit = failure.device_free, failure.limit
    if limit is not None and failure.reserved + failure.segment > limit:
        short = failure.reserved + failure.segment - limit
        left = f" The driver still had {format_bytes(free)} free." if free is not None else ""
        return [
            f"PyTorch may reserve {format_bytes(limit)}; with the {format_bytes(failure.segment)} needed it would be "
            f"{format_bytes(short)} over.{left}"
        ]
    if free is None:
        return [
            "Neither the file nor a message says how much memory the driver had free; give PyTorch's message with "
            "--message."
        ]
    if free < failure.segment:
        return [f"The driver had {format_bytes(free)} free, less than the {format_bytes(failure.segment)} needed."]
    enough = f"The driver still had {format_bytes(free)} free, enough for the {format_bytes(failure.segment)} needed"
    if failure.limit_high is not None:
        return [
            f"{enough}. So PyTorch itself was held back: a limit of at least {format_bytes(failure.limit_low)} and "
            f"less than {format_bytes(failure.limit_high)} (set_per_process_memory_fraction), unless the driver "
            "refused." + (f" The {format_bytes(limit)} that were given do not explain it." if limit is not None else "")
        ]
    return [f"{enough}, and no limit was set: the driver refused, as it may where its own memory is in pieces."]


def _about_the_rest_of_the_card(failure: OutOfMemory) -> list[str]:
    if failure.not_pytorch is None:
        if failure.verdict != "capacity":
            return []
        return [
            "Live tensors fill what the driver gave; what other processes and libraries hold is not in the file: "
            "--message or --card tell."
        ]
    if failure.others is None or failure.outside is None:
        found = [
            f"Of the card's {format_bytes(failure.card)}, {format_bytes(failure.not_pytorch)} is neither PyTorch's nor "
            "free: this process's libraries or other processes. PyTorch's full message tells which."
        ]
    else:
        found = [
            f"Of the card's {format_bytes(failure.card)}, {format_bytes(failure.outside)} is this process outside "
            f"PyTorch (context, kernels, libraries) and {format_bytes(failure.others)} other processes."
        ]
    if failure.verdict == "capacity":
        found.append("Even all of that would not have been enough for it.")
    return found
