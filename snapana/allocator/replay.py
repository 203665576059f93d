"""What the allocator did: block lives, curves and layouts, exact to the byte.

Addresses are recorded, so nothing is searched: lives come from pairing events by address, sizes from
the rounding rules, and, for large blocks of ordinary segments that the allocator may not split, from the
gap that the block was given (c10/cuda/CUDACachingAllocator.cpp: ``should_split``, ``alloc_found_block``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.layout import Layout, build_layout
from snapana.allocator.rounding import SMALL_BUFFER, SMALL_SIZE, Rounding
from snapana.errors import SnapanaError
from snapana.snapshot.model import ACTION_CODE, Snapshot

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# A large block keeps a remainder of up to this many bytes (kSmallSize).
MAX_UNSPLIT = SMALL_SIZE
# Pieces of expandable segments times the events that touch them; beyond it a file is hostile.
MAX_PIECE_EVENTS = 50_000_000
# Bytes that one device may have reserved; no card comes near.
MAX_RESERVED = 2**42

_ALLOC = ACTION_CODE["alloc"]
_REQUESTED = ACTION_CODE["free_requested"]
_COMPLETED = ACTION_CODE["free_completed"]
_FREE = ACTION_CODE["free"]
_SEGMENT_ALLOC = ACTION_CODE["segment_alloc"]
_SEGMENT_FREE = ACTION_CODE["segment_free"]
_MAP = ACTION_CODE["segment_map"]
_UNMAP = ACTION_CODE["segment_unmap"]
_SNAPSHOT = ACTION_CODE["snapshot"]


@dataclass(frozen=True)
class Coverage:
    """How much of the run the window holds, and how well the replay agrees with the file.

    Attributes:
        events: number of trace entries.
        complete: nothing existed before the first event and nothing was lost.
        start_us: time of the first event, None if unknown.
        end_us: time of the last event, None if unknown.
        preexisting_bytes: bytes of the blocks that were allocated before the window.
        preexisting_blocks: their number.
        preexisting_reserved_bytes: bytes of the segments that existed before it.
        guessed_blocks: pre-existing blocks whose end is unknown by up to 1 MiB.
        unmatched_frees: frees in the window of blocks allocated before it.
        mismatches: count of each kind of disagreement with the file.

    """

    events: int
    complete: bool
    start_us: int | None
    end_us: int | None
    preexisting_bytes: int
    preexisting_blocks: int
    preexisting_reserved_bytes: int
    guessed_blocks: int
    unmatched_frees: int
    mismatches: dict[str, int] = field(default_factory=dict)

    @property
    def replay_mismatches(self) -> int:
        """All disagreements together."""
        return sum(self.mismatches.values())


@dataclass(frozen=True)
class DeviceReplay:
    """What happened on one device.

    Attributes:
        device: ordinal.
        events: the device's events, as ``Snapshot.events``.
        allocations: one row per block life: ``addr``, ``requested``, ``size`` (bytes occupied), ``alloc``,
            ``free_requested``, ``free_completed`` (event index; -1: before the window, or still so at the
            end), ``stack``, ``stream``, ``pool``, ``small``, ``alive`` (allocated at the end), ``guessed``.
        curves: bytes after each event, the first row (``event`` -1) before the first one: ``event``,
            ``allocated``, ``active``, ``requested``, ``reserved``.
        segments: one row per life of a segment (of a mapped piece, if expandable): ``address``, ``size``,
            ``born``, ``died`` (event index, -1 as above), ``stream``, ``pool``, ``small``, ``expandable``.
        coverage: what the window holds.

    """

    device: int
    events: pd.DataFrame
    allocations: pd.DataFrame
    curves: pd.DataFrame
    segments: pd.DataFrame
    coverage: Coverage

    def layout(self, event: int) -> Layout:
        """Give the blocks and free ranges of every segment after ``event`` (-1: before the first)."""
        return build_layout(self.segments, self.allocations, event)

    def live(self, event: int) -> pd.DataFrame:
        """Give the allocations that count as allocated after ``event``."""
        table = self.allocations
        gone = table["free_requested"].to_numpy()
        alive: pd.DataFrame = table.loc[(table["alloc"].to_numpy() <= event) & ((gone == NEVER) | (gone > event))]
        return alive

    def time_us(self, event: int) -> int | None:
        """Give the time of an event; of the first for -1; None where times are not recorded."""
        times = self.events["time_us"].to_numpy()
        if not len(times):
            return None
        time = int(times[max(event, 0)])
        return time if time >= 0 else None

    def peak_event(self, curve: str = "allocated") -> int:
        """Give the first event at which a curve is highest."""
        return int(self.curves[curve].to_numpy().argmax()) - 1


@dataclass(frozen=True)
class Replay:
    """What happened on every device of a snapshot."""

    devices: dict[int, DeviceReplay]

    def __getitem__(self, device: int) -> DeviceReplay:
        return self.devices[device]

    @cached_property
    def allocations(self) -> pd.DataFrame:
        """Block lives of all devices: see ``DeviceReplay.allocations``, with a ``device`` column."""
        return self._concat("allocations")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Curves of all devices: see ``DeviceReplay.curves``, with a ``device`` column."""
        return self._concat("curves")

    @property
    def coverage(self) -> dict[int, Coverage]:
        """Coverage by device."""
        return {device: replay.coverage for device, replay in self.devices.items()}

    def layout(self, device: int, event: int) -> Layout:
        """Give the layout of one device after an event."""
        return self.devices[device].layout(event)

    def _concat(self, name: str) -> pd.DataFrame:
        frames = [getattr(replay, name).assign(device=device) for device, replay in self.devices.items()]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


# "Not in the window": before it for a start, still alive for an end.
NEVER = -1


def replay_snapshot(snapshot: Snapshot) -> Replay:
    """Replay every device of a snapshot.

    Raises:
        SnapanaError: ``input.too_large`` where the pieces of expandable segments exceed any real file.

    """
    return Replay({device: _replay_device(snapshot, device) for device in snapshot.devices})


@dataclass(frozen=True)
class _Final:
    """Final state of one device, from the file, sorted by address."""

    segments: pd.DataFrame
    blocks: pd.DataFrame


def _final_state(snapshot: Snapshot, device: int) -> _Final:
    segments = snapshot.segments
    segments = segments[segments["device"] == device]
    blocks = snapshot.blocks
    blocks = blocks[(blocks["device"] == device) & (blocks["state"] != "free")]
    blocks = blocks.assign(
        stream=snapshot.segments["stream"].to_numpy()[blocks["segment"].to_numpy()],
        pool=snapshot.segments["pool"].to_numpy()[blocks["segment"].to_numpy()],
    )
    return _Final(segments.sort_values("address", ignore_index=True), blocks.sort_values("address", ignore_index=True))


def _replay_device(snapshot: Snapshot, device: int) -> DeviceReplay:
    events = snapshot.events_of(device)
    final = _final_state(snapshot, device)
    mismatches: dict[str, int] = {}
    lives, unmatched = _pair_blocks(events, final, mismatches)
    segments = _pair_segments(events, final, mismatches)
    rounding = Rounding(divisions=snapshot.settings.roundup_power2_divisions, pad=snapshot.rounding_pad)
    guessed = _fill_sizes(lives, segments, rounding, snapshot.settings.max_split_size, mismatches)
    segments["small"] = _classify_segments(segments, lives)
    mismatches["blocks_outside_segments"] = int((lives["segment"] < 0).sum())
    _fill_pools(lives, segments)
    curves = _curves(len(events), lives, segments)
    if int(curves["reserved"].max()) > MAX_RESERVED:
        raise SnapanaError(
            "input.malformed",
            f"{snapshot.info.name} has segments of more than 4 TiB on device {device}: no card has them.",
            "Was it changed by another tool? Use the file that _dump_snapshot wrote.",
        )
    _check(snapshot, device, events, final, curves, mismatches)
    before = (lives["alloc"] == NEVER).to_numpy()
    born_before = (segments["born"] == NEVER).to_numpy()
    times = events["time_us"].to_numpy()
    timed = len(times) > 0 and int(times[0]) >= 0
    mismatches = {kind: count for kind, count in mismatches.items() if count}
    coverage = Coverage(
        events=len(events),
        complete=bool(len(events)) and not before.any() and not born_before.any() and not mismatches,
        start_us=int(times[0]) if timed else None,
        end_us=int(times[-1]) if timed else None,
        preexisting_bytes=int(lives["size"].to_numpy()[before].sum()),
        preexisting_blocks=int(before.sum()),
        preexisting_reserved_bytes=int(segments["size"].to_numpy()[born_before].sum()),
        guessed_blocks=guessed,
        unmatched_frees=unmatched,
        mismatches=mismatches,
    )
    return DeviceReplay(device, events, lives, curves, segments, coverage)


# ---- block lives


def _pair_blocks(events: pd.DataFrame, final: _Final, mismatches: dict[str, int]) -> tuple[pd.DataFrame, int]:
    """Pair allocations and frees by address into lives, and lives with the blocks of the final state.

    Returns the lives in order of their allocation, those from before the window first by address, and the
    number of frees without an allocation.
    """
    action = events["action"].cat.codes.to_numpy()
    chosen = np.flatnonzero((action == _ALLOC) | (action == _REQUESTED) | (action == _COMPLETED) | (action == _FREE))
    addr_of = events["addr"].to_numpy()
    order = chosen[np.argsort(addr_of[chosen], kind="stable")]
    act, addr = action[order], addr_of[order]
    is_alloc = act == _ALLOC
    asks = (act == _REQUESTED) | (act == _FREE)
    ends = (act == _COMPLETED) | (act == _FREE)
    starts = _life_starts(addr, is_alloc, asks, ends)
    life = np.cumsum(starts) - 1
    count = int(life[-1]) + 1 if len(life) else 0

    def event_of(mask: BoolArray) -> IntArray:
        found = np.full(count, NEVER, dtype=np.int64)
        found[life[mask]] = order[mask]
        return found

    alloc, requested, completed = event_of(is_alloc), event_of(asks), event_of(ends)
    first = order[starts] if count else order[:0]
    unasked = (requested == NEVER) & (completed != NEVER)
    if not (unasked & (alloc != NEVER)).any():
        # Asked for before the window, completed within it.
        requested[unasked] = PENDING_BEFORE
    # Recorded without one of the two (skip_actions): the other one tells.
    requested = np.where(requested == NEVER, completed, requested)
    if not ends.any():
        completed = np.where(_still_pending(addr[starts], final), NEVER, requested)
    row = np.where(alloc != NEVER, alloc, first)
    lives = pd.DataFrame(
        {
            "addr": addr_of[row],
            "requested": events["size"].to_numpy()[row],
            "alloc": alloc,
            "free_requested": requested,
            "free_completed": completed,
            "stack": np.where(alloc != NEVER, events["stack"].to_numpy()[row], -1).astype(np.int64),
            "stream": events["stream"].to_numpy()[row],
            "pool": events["pool"].to_numpy()[row],
            "known": np.zeros(count, dtype=np.int64),
            "alive": np.zeros(count, dtype=bool),
        }
    )
    unmatched = int(((alloc == NEVER) & (completed != NEVER)).sum())
    lives = _close_overwritten(lives, mismatches)
    lives = _match_final(lives, final, mismatches)
    ordering = np.lexsort((lives["addr"].to_numpy(), lives["alloc"].to_numpy()))
    return lives.iloc[ordering].reset_index(drop=True), unmatched


def _still_pending(addr: npt.NDArray[np.uint64], final: _Final) -> BoolArray:
    """Mark the last life of each address that waits for a stream in the final state; ``addr`` is sorted."""
    last = np.ones(len(addr), dtype=bool)
    last[:-1] = addr[1:] != addr[:-1]
    waiting = final.blocks["address"].to_numpy()[(final.blocks["state"] == "pending").to_numpy()]
    return last & np.isin(addr, waiting)


def _life_starts(addr: npt.NDArray[np.uint64], is_alloc: BoolArray, asks: BoolArray, ends: BoolArray) -> BoolArray:
    """Mark where a new life begins in events sorted by address and time.

    A life is one alloc, one request to free and one completion, each at most once and in this order; what
    does not fit begins a life whose allocation was not recorded.
    """
    stage = np.where(is_alloc, 0, np.where(asks, 1, 2))
    starts = np.ones(len(addr), dtype=bool)
    if len(addr) < 2:
        return starts
    same = addr[1:] == addr[:-1]
    done = ends[:-1]
    starts[1:] = ~same | is_alloc[1:] | done | (stage[1:] <= stage[:-1])
    return starts


def _close_overwritten(lives: pd.DataFrame, mismatches: dict[str, int]) -> pd.DataFrame:
    """Two allocations at one address without a free between: the free was lost, close the first."""
    addr = lives["addr"].to_numpy()
    if len(addr) < 2:
        return lives
    unfinished = (lives["free_completed"].to_numpy()[:-1] == NEVER) & (addr[1:] == addr[:-1])
    where = np.flatnonzero(unfinished)
    mismatches["lost_frees"] = len(where)
    if not len(where):
        return lives
    following = lives["alloc"].to_numpy()[where + 1]
    lives = lives.copy()
    for column in ("free_requested", "free_completed"):
        values = lives[column].to_numpy().copy()
        values[where] = np.where(values[where] == NEVER, np.maximum(following, 0), values[where])
        lives[column] = values
    return lives


def _match_final(lives: pd.DataFrame, final: _Final, mismatches: dict[str, int]) -> pd.DataFrame:
    """Join open lives with the final blocks: sizes become known, older blocks join the lives."""
    blocks = final.blocks
    is_open = np.flatnonzero(lives["free_completed"].to_numpy() == NEVER)
    block_at = blocks["address"].to_numpy()
    position = np.searchsorted(block_at, lives["addr"].to_numpy()[is_open])
    inside = position < len(block_at)
    found = np.zeros(len(is_open), dtype=bool)
    found[inside] = block_at[position[inside]] == lives["addr"].to_numpy()[is_open[inside]]
    row, block = is_open[found], position[found]
    allocated = (blocks["state"] == "allocated").to_numpy()
    waiting = lives["free_requested"].to_numpy() != NEVER
    mismatches["blocks_missing_at_end"] = int((~found).sum())
    mismatches["state_differs_at_end"] = int((waiting[row] == allocated[block]).sum())
    mismatches["requested_differs_at_end"] = int(
        (lives["requested"].to_numpy()[row] != blocks["requested"].to_numpy()[block]).sum()
    )
    known, stack, pool = (lives[name].to_numpy().copy() for name in ("known", "stack", "pool"))
    known[row] = blocks["size"].to_numpy()[block]
    stack[row] = np.where(stack[row] < 0, blocks["stack"].to_numpy()[block], stack[row])
    pool[row] = blocks["pool"].to_numpy()[block]
    lives = lives.assign(known=known, stack=stack, pool=pool)
    alive = lives["alive"].to_numpy().copy()
    alive[row] = ~waiting[row]
    lives["alive"] = alive
    lives = _end_lost(lives, is_open[~found])
    older = np.setdiff1d(np.arange(len(block_at)), block, assume_unique=True)
    if not len(older):
        return lives
    return pd.concat([lives, _older_lives(blocks.iloc[older])], ignore_index=True)


def _end_lost(lives: pd.DataFrame, rows: IntArray) -> pd.DataFrame:
    """A life that the final state does not know ended unseen: let it end where it began to be free."""
    if not len(rows):
        return lives
    lives = lives.copy()
    start = np.maximum(lives["alloc"].to_numpy()[rows], lives["free_requested"].to_numpy()[rows])
    for column in ("free_requested", "free_completed"):
        values = lives[column].to_numpy().copy()
        values[rows] = np.maximum(start, 0)
        lives[column] = values
    return lives


def _older_lives(blocks: pd.DataFrame) -> pd.DataFrame:
    """Blocks of the final state that no event speaks of existed before the window."""
    allocated = (blocks["state"] == "allocated").to_numpy()
    return pd.DataFrame(
        {
            "addr": blocks["address"].to_numpy(),
            "requested": blocks["requested"].to_numpy(),
            "alloc": NEVER,
            # Waiting for another stream since before the window: not allocated at its start.
            "free_requested": np.where(allocated, NEVER, PENDING_BEFORE),
            "free_completed": NEVER,
            "stack": blocks["stack"].to_numpy(),
            "stream": blocks["stream"].to_numpy(),
            "pool": blocks["pool"].to_numpy(),
            "known": blocks["size"].to_numpy(),
            "alive": allocated,
        }
    )


# A free that was requested before the window and is not completed within it.
PENDING_BEFORE = -2


# ---- segment lives


def _pair_segments(events: pd.DataFrame, final: _Final, mismatches: dict[str, int]) -> pd.DataFrame:
    action = events["action"].cat.codes.to_numpy()
    ordinary = _ordinary_segments(events, action, final.segments[~final.segments["expandable"]], mismatches)
    pieces = _expandable_pieces(events, action, final.segments[final.segments["expandable"]], mismatches)
    return pd.concat([ordinary, pieces], ignore_index=True).sort_values(
        ["address", "born"], kind="stable", ignore_index=True
    )


def _segment_frame(
    address: npt.NDArray[np.uint64],
    size: IntArray,
    born: IntArray,
    died: IntArray,
    stream: npt.NDArray[np.uint64],
    pool: IntArray,
    final_small: IntArray,
    *,
    expandable: bool,
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "address": address,
            "size": size,
            "born": born,
            "died": died,
            "stream": stream,
            "pool": pool,
            "final_small": final_small,
            "expandable": np.full(len(address), expandable, dtype=bool),
        }
    )


def _ordinary_segments(
    events: pd.DataFrame, action: npt.NDArray[Any], final: pd.DataFrame, mismatches: dict[str, int]
) -> pd.DataFrame:
    """Pair segment_alloc and segment_free by base address, and what stays open with the final segments."""
    chosen = np.flatnonzero((action == _SEGMENT_ALLOC) | (action == _SEGMENT_FREE))
    addr_of = events["addr"].to_numpy()
    order = chosen[np.argsort(addr_of[chosen], kind="stable")]
    addr, is_alloc = addr_of[order], action[order] == _SEGMENT_ALLOC
    starts = _life_starts(addr, is_alloc, np.zeros(len(order), dtype=bool), ~is_alloc)
    life = np.cumsum(starts) - 1
    count = int(life[-1]) + 1 if len(life) else 0
    born = np.full(count, NEVER, dtype=np.int64)
    died = np.full(count, NEVER, dtype=np.int64)
    born[life[is_alloc]] = order[is_alloc]
    died[life[~is_alloc]] = order[~is_alloc]
    row = order[starts] if count else order[:0]
    address, size = addr_of[row], events["size"].to_numpy()[row]
    pool = events["pool"].to_numpy()[row].astype(np.int64)
    small = np.full(count, -1, dtype=np.int64)

    freed_size = np.where(died >= 0, events["size"].to_numpy()[np.maximum(died, 0)] if len(events) else 0, size)
    mismatches["segment_sizes_differ"] = int((freed_size != size).sum())

    is_open = np.flatnonzero(died == NEVER)
    at = final["address"].to_numpy()
    position = np.minimum(np.searchsorted(at, address[is_open]), max(len(at) - 1, 0))
    same = (
        (at[position] == address[is_open]) & (final["size"].to_numpy()[position] == size[is_open])
        if len(at)
        else np.zeros(len(is_open), dtype=bool)
    )
    mismatches["segments_missing_at_end"] = int((~same).sum())
    matched = position[same]
    pool[is_open[same]] = final["pool"].to_numpy()[matched]
    small[is_open[same]] = final["small"].to_numpy()[matched]
    # A segment that the final state lacks ended unseen; it cannot be placed, so it never was.
    keep = np.ones(count, dtype=bool)
    keep[is_open[~same]] = False
    recorded = _segment_frame(
        address, size, born, died, events["stream"].to_numpy()[row], pool, small, expandable=False
    ).loc[keep]
    older = final.iloc[np.setdiff1d(np.arange(len(at)), matched)]
    never = np.full(len(older), NEVER, dtype=np.int64)
    before = _segment_frame(
        older["address"].to_numpy(),
        older["size"].to_numpy(),
        never,
        never,
        older["stream"].to_numpy(),
        older["pool"].to_numpy(),
        older["small"].to_numpy().astype(np.int64),
        expandable=False,
    )
    return pd.concat([recorded, before], ignore_index=True)


def _expandable_pieces(
    events: pd.DataFrame, action: npt.NDArray[Any], final: pd.DataFrame, mismatches: dict[str, int]
) -> pd.DataFrame:
    """Cut expandable segments at every boundary ever mapped or unmapped; each piece has its own lives."""
    chosen = np.flatnonzero((action == _MAP) | (action == _UNMAP))
    low = np.concatenate([events["addr"].to_numpy()[chosen], final["address"].to_numpy()])
    size = np.concatenate([events["size"].to_numpy()[chosen], final["size"].to_numpy()])
    high = low + size.astype(np.uint64)
    cuts = np.unique(np.concatenate([low, high]))
    first, last = np.searchsorted(cuts, low), np.searchsorted(cuts, high)
    width = last - first
    if int(width.sum()) > MAX_PIECE_EVENTS:
        raise SnapanaError(
            "input.too_large",
            "The expandable segments of this file have more pieces than any real recording.",
        )
    # One row per (piece, event or final segment).
    source = np.repeat(np.arange(len(low)), width)
    piece = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width) + np.repeat(first, width)
    is_final = source >= len(chosen)
    event = np.where(is_final, len(events), chosen[np.minimum(source, len(chosen) - 1)] if len(chosen) else 0)
    order = np.lexsort((event, piece))
    source, piece, event, is_final = source[order], piece[order], event[order], is_final[order]
    mapped = np.zeros(len(source), dtype=bool)
    mapped[~is_final] = action[event[~is_final]] == _MAP
    # A final segment confirms an open life, or is one from before the window: it ends the group.
    previous_same = np.zeros(len(piece), dtype=bool)
    previous_same[1:] = piece[1:] == piece[:-1]
    previous_mapped = np.zeros(len(piece), dtype=bool)
    previous_mapped[1:] = mapped[:-1] & previous_same[1:]
    starts = mapped | (~mapped & ~previous_mapped)
    mismatches["pieces_mapped_twice"] = int((mapped & previous_mapped).sum())
    life = np.cumsum(starts) - 1
    count = int(life[-1]) + 1 if len(life) else 0
    born = np.full(count, NEVER, dtype=np.int64)
    died = np.full(count, NEVER, dtype=np.int64)
    confirmed = np.zeros(count, dtype=bool)
    born[life[mapped]] = event[mapped]
    unmapped = ~mapped & ~is_final
    died[life[unmapped]] = event[unmapped]
    confirmed[life[is_final]] = True
    lost = (died == NEVER) & ~confirmed
    mismatches["pieces_missing_at_end"] = int(lost.sum())
    piece_of = piece[starts]
    address = cuts[piece_of]
    length = (cuts[np.minimum(piece_of + 1, len(cuts) - 1)] - address).astype(np.int64) if count else np.zeros(0, int)
    stream = np.concatenate([events["stream"].to_numpy()[chosen], final["stream"].to_numpy()])[source[starts]]
    pool = np.concatenate([events["pool"].to_numpy()[chosen], final["pool"].to_numpy()])[source[starts]]
    small = np.full(count, -1, dtype=np.int64)
    of_final = source[is_final] - len(chosen)
    small[life[is_final]] = final["small"].to_numpy()[of_final]
    pool = pool.astype(np.int64)
    pool[life[is_final]] = final["pool"].to_numpy()[of_final]
    pieces = _segment_frame(address, length, born, died, stream, pool, small, expandable=True)
    kept: pd.DataFrame = pieces.loc[~lost]
    return kept


# ---- sizes


def _fill_sizes(
    lives: pd.DataFrame,
    segments: pd.DataFrame,
    rounding: Rounding,
    max_split_size: int | None,
    mismatches: dict[str, int],
) -> int:
    """Add ``size``, ``small`` and ``guessed`` to the lives; return how many sizes are guessed."""
    rounded = rounding.round_sizes(lives["requested"].to_numpy())
    known = lives["known"].to_numpy()
    small = rounded <= SMALL_SIZE
    size = np.where(known > 0, known, rounded)
    guessed = np.zeros(len(lives), dtype=bool)
    large = np.flatnonzero(~small)
    ordinary = segments[~segments["expandable"] & (segments["size"] > SMALL_BUFFER)]
    walk = _LargeBlocks(lives, large, ordinary, rounded, max_split_size)
    walk.run()
    mismatches["blocks_overlap"] = walk.misplaced
    computed = rounded.copy()
    computed[large] = walk.size
    guessed[large] = walk.guessed
    recorded = (known > 0) & (lives["alloc"].to_numpy() != NEVER)
    mismatches["sizes_differ_at_end"] = int((computed[recorded] != known[recorded]).sum())
    lives["size"] = np.where(known > 0, size, computed)
    lives["small"] = small
    lives["guessed"] = guessed & (known == 0)
    del lives["known"]
    return int(lives["guessed"].sum())


class _LargeBlocks:
    """Walks the large blocks of ordinary segments in order and finds how much each was given."""

    def __init__(
        self,
        lives: pd.DataFrame,
        rows: IntArray,
        segments: pd.DataFrame,
        rounded: IntArray,
        max_split_size: int | None,
    ) -> None:
        self._addr = lives["addr"].to_numpy()[rows].tolist()
        self._rounded = rounded[rows].tolist()
        self._known = lives["known"].to_numpy()[rows].tolist()
        self._born = lives["alloc"].to_numpy()[rows].tolist()
        self._died = lives["free_completed"].to_numpy()[rows].tolist()
        self._segments = segments
        self._segment_at = segments["address"].tolist()
        self._segment_size = segments["size"].tolist()
        self._max_split = max_split_size
        self.size = rounded[rows].copy()
        self.guessed = np.zeros(len(rows), dtype=bool)
        self.misplaced = 0
        # Live ordinary segments: bases in order, and by base their end and the starts of their live blocks.
        self._bases: list[int] = []
        self._end: dict[int, int] = {}
        self._blocks: dict[int, list[int]] = {}
        # The number and the assumed end of the live blocks from before the window, by start.
        self._loose: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        """Fill ``size``, ``guessed`` and ``misplaced``."""
        born, died = self._segments["born"].tolist(), self._segments["died"].tolist()
        for number, event in enumerate(born):
            if event == NEVER:
                self._open_segment(number)
        self._place_older([number for number, event in enumerate(self._born) if event == NEVER])
        steps = [(event, self._open_segment, number) for number, event in enumerate(born)]
        steps += [(event, self._close_segment, number) for number, event in enumerate(died)]
        steps += [(event, self._place, number) for number, event in enumerate(self._born)]
        steps += [(event, self._free, number) for number, event in enumerate(self._died)]
        # An event is one thing only, so the order of the kinds at one event does not matter.
        for _, step, number in sorted((step for step in steps if step[0] != NEVER), key=itemgetter(0)):
            step(number)

    def _open_segment(self, number: int) -> None:
        base = self._segment_at[number]
        if base not in self._end:
            insort(self._bases, base)
        self._end[base] = base + self._segment_size[number]
        self._blocks[base] = []

    def _close_segment(self, number: int) -> None:
        base = self._segment_at[number]
        if base in self._end:
            del self._end[base], self._blocks[base]
            self._bases.remove(base)

    def _segment_of(self, addr: int) -> int | None:
        position = bisect_right(self._bases, addr) - 1
        if position < 0:
            return None
        base = self._bases[position]
        return base if addr < self._end[base] else None

    def _free(self, number: int) -> None:
        addr = self._addr[number]
        base = self._segment_of(addr)
        if base is None:
            return
        starts = self._blocks[base]
        position = bisect_left(starts, addr)
        if position < len(starts) and starts[position] == addr:
            del starts[position]
        self._loose.pop(addr, None)

    def _room(self, base: int, addr: int) -> int:
        starts = self._blocks[base]
        position = bisect_right(starts, addr)
        end = starts[position] if position < len(starts) else self._end[base]
        return end - addr

    def _place(self, number: int) -> None:
        addr, wanted = self._addr[number], self._rounded[number]
        base = self._segment_of(addr)
        if base is None:
            return
        self._settle_older(base, addr)
        room = self._room(base, addr)
        if room < wanted:
            self.misplaced += 1
            room = wanted
        splits = room - wanted > MAX_UNSPLIT and (self._max_split is None or wanted < self._max_split)
        self.size[number] = wanted if splits else room
        insort(self._blocks[base], addr)

    def _place_older(self, numbers: list[int]) -> None:
        """Place all blocks from before the window, then size them: a gap needs every neighbour."""
        for number in numbers:
            base = self._segment_of(self._addr[number])
            if base is not None:
                insort(self._blocks[base], self._addr[number])
        for number in numbers:
            self._size_older(number)

    def _size_older(self, number: int) -> None:
        addr, wanted = self._addr[number], self._rounded[number]
        base = self._segment_of(addr)
        if base is None:
            return
        if self._known[number]:
            self.size[number] = self._known[number]
            return
        room = self._room(base, addr)
        if 0 <= room - wanted <= MAX_UNSPLIT:
            self.size[number] = room
            return
        self.guessed[number] = True
        self._loose[addr] = (number, addr + wanted)

    def _settle_older(self, base: int, addr: int) -> None:
        """A block placed right behind an older one shows where that one ended."""
        starts = self._blocks[base]
        position = bisect_left(starts, addr) - 1
        if position < 0 or starts[position] not in self._loose:
            return
        number, end = self._loose.pop(starts[position])
        if 0 <= addr - end <= MAX_UNSPLIT:
            self.size[number] = addr - starts[position]
            self.guessed[number] = False


# ---- pools and size classes


def _owner(segments: pd.DataFrame, lives: pd.DataFrame) -> IntArray:
    """Give for each life the row of the segment that held it, -1 if none.

    ``segments`` is sorted by address and birth. Segments of one base follow each other in time; a life may
    also lie in one of a lower base, since other segments may have begun between the two at other times.
    """
    owner = np.full(len(lives), -1, dtype=np.int64)
    if not len(segments):
        return owner
    start, born = segments["address"].to_numpy(), segments["born"].to_numpy()
    size, died = segments["size"].to_numpy().astype(np.uint64), segments["died"].to_numpy()
    addr, alloc = lives["addr"].to_numpy(), lives["alloc"].to_numpy()
    bases, group = np.unique(start, return_inverse=True)
    span = np.int64(max(int(born.max()), int(alloc.max(initial=0))) + 3)
    in_order = group * span + born + 1
    at = np.searchsorted(bases, addr, side="right").astype(np.int64) - 1
    todo = np.arange(len(lives))
    while True:
        todo = todo[at[todo] >= 0]
        todo = todo[addr[todo] - bases[at[todo]] < size.max()]
        if not len(todo):
            return owner
        row = np.searchsorted(in_order, at[todo] * span + alloc[todo] + 1, side="right") - 1
        row = np.maximum(row, 0)
        fits = (
            (group[row] == at[todo])
            & (addr[todo] - start[row] < size[row])
            & ((died[row] == NEVER) | (died[row] > alloc[todo]))
        )
        owner[todo[fits]] = row[fits]
        todo = todo[~fits]
        at[todo] -= 1


def _classify_segments(segments: pd.DataFrame, lives: pd.DataFrame) -> BoolArray:
    """Say which segments are of the small pool: the file, else their tenants, else their size."""
    owner = _owner(segments, lives)
    lives["segment"] = owner
    held = owner >= 0
    tenants = np.zeros(len(segments), dtype=np.int64)
    small_tenants = np.zeros(len(segments), dtype=np.int64)
    np.add.at(tenants, owner[held], 1)
    np.add.at(small_tenants, owner[held], lives["small"].to_numpy()[held].astype(np.int64))
    final = segments["final_small"].to_numpy()
    by_size = segments["size"].to_numpy() <= SMALL_BUFFER
    by_tenants = np.where(tenants > 0, small_tenants * 2 > tenants, by_size)
    del segments["final_small"]
    return np.where(final >= 0, final > 0, by_tenants)


def _fill_pools(lives: pd.DataFrame, segments: pd.DataFrame) -> None:
    """A life without a recorded pool has that of its segment, a segment without one the default."""
    segments["pool"] = np.maximum(segments["pool"].to_numpy(), 0)
    owner = lives["segment"].to_numpy()
    of_segment = segments["pool"].to_numpy()[np.maximum(owner, 0)] if len(segments) else np.zeros(len(lives), int)
    pool = lives["pool"].to_numpy()
    lives["pool"] = np.where(pool >= 0, pool, np.where(owner >= 0, of_segment, 0))


# ---- curves


def _curves(count: int, lives: pd.DataFrame, segments: pd.DataFrame) -> pd.DataFrame:
    size, asked = lives["size"].to_numpy(), lives["requested"].to_numpy()
    born = lives["alloc"].to_numpy()
    requested, completed = lives["free_requested"].to_numpy(), lives["free_completed"].to_numpy()
    waiting = requested == PENDING_BEFORE
    return pd.DataFrame(
        {
            "event": np.arange(-1, count, dtype=np.int64),
            "allocated": _curve(count, size[~waiting], born[~waiting], requested[~waiting]),
            "active": _curve(count, size, born, completed),
            "requested": _curve(count, asked, born, completed),
            "reserved": _curve(
                count, segments["size"].to_numpy(), segments["born"].to_numpy(), segments["died"].to_numpy()
            ),
        }
    )


def _curve(count: int, size: IntArray, born: IntArray, died: IntArray) -> IntArray:
    """Sum what is alive after each event; the first value is the state before event 0."""
    delta = np.zeros(count + 1, dtype=np.int64)
    np.add.at(delta, born + 1, size)
    ended = died != NEVER
    np.subtract.at(delta, died[ended] + 1, size[ended])
    return np.cumsum(delta)


def _check(
    snapshot: Snapshot,
    device: int,
    events: pd.DataFrame,
    final: _Final,
    curves: pd.DataFrame,
    mismatches: dict[str, int],
) -> None:
    """Hold the replay against what the file says itself: totals, tiling, `snapshot` events."""
    end = curves.iloc[-1]
    segments = final.segments
    mismatches["reserved_differs_at_end"] = int(end["reserved"] != segments["size"].sum())
    active = final.blocks["size"].sum()
    mismatches["active_differs_at_end"] = int(end["active"] != active)
    mismatches["segments_not_tiled"] = _untiled(snapshot, device)
    marks = np.flatnonzero(events["action"].cat.codes.to_numpy() == _SNAPSHOT)
    said = events["size"].to_numpy()[marks]
    mismatches["snapshot_events_differ"] = int((curves["active"].to_numpy()[marks + 1] != said).sum())


def _untiled(snapshot: Snapshot, device: int) -> int:
    """Count segments whose blocks do not lie end to end from its start to its end."""
    chosen = (snapshot.segments["device"] == device).to_numpy()
    blocks = snapshot.blocks
    sums = np.zeros(len(snapshot.segments), dtype=np.int64)
    row = blocks["segment"].to_numpy()
    np.add.at(sums, row, blocks["size"].to_numpy())
    bad = sums != snapshot.segments["size"].to_numpy()
    start = blocks["address"].to_numpy()
    end = start + blocks["size"].to_numpy().astype(np.uint64)
    first = np.ones(len(row), dtype=bool)
    first[1:] = row[1:] != row[:-1]
    expected = np.where(first, snapshot.segments["address"].to_numpy()[row], np.concatenate([start[:1], end[:-1]]))
    bad[row[start != expected]] = True
    return int((bad & chosen).sum())
