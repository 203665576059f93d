"""The model of one memory snapshot: frames with one row per event, segment, block and annotation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from snapana.allocator.settings import AllocatorSettings
from snapana.snapshot.sidecar import Sidecar
from snapana.snapshot.stacks import Stacks

if TYPE_CHECKING:
    from snapana.allocator.replay import Replay

# Codes of the `action` column, in this order; actions this version does not know follow.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "free",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
    "user_defined",
    "workspace_snapshot",
)
ACTION_CODE = {name: code for code, name in enumerate(ACTIONS)}

DEFAULT_POOL = (0, 0)


@dataclass(frozen=True)
class InputInfo:
    """Where a model came from.

    Attributes:
        name: file name without folders.
        kind: ``snapshot``, ``trace`` or ``timeline``.
        sha256: of the bytes as given; None for a document that never was a file.
        size_bytes: of the file as given, still compressed; None likewise.

    """

    name: str
    kind: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """One memory snapshot, whatever PyTorch wrote it.

    Addresses are uint64, bytes int64, times microseconds since the Unix epoch; -1 in a column of ids,
    times or events means unknown or none.

    Attributes:
        info: where it came from.
        generation: the PyTorch versions whose files look like this one, such as ``"torch 2.10-2.11"``.
        settings: allocator settings at the moment of the dump.
        has_settings: whether the file held settings at all.
        events: one row per trace entry, by device and order: ``device``, ``index`` (position in its device's
            trace), ``action`` (categorical), ``addr``, ``size`` (bytes asked for; of the segment for segment
            actions), ``stream``, ``pool`` (index into ``pools``, -1 where not recorded), ``time_us``,
            ``stack`` (id in ``stacks``), ``context`` (equal where the recorder shared one captured stack),
            ``compile_context``, ``user_metadata``, ``device_free`` (bytes, ``oom`` only).
        segments: final state: ``device``, ``address``, ``size``, ``allocated``, ``active``, ``requested``
            (bytes as the file says, -1 where it does not), ``stream``, ``pool``, ``small``, ``expandable``, ``stack``.
        blocks: final state: ``segment`` (row of ``segments``), ``device``, ``address``, ``size``,
            ``requested``, ``state`` (``allocated``, ``pending`` or ``free``), ``stack``, ``context``.
        annotations: ``name``, ``device``, ``start_us``, ``end_us``.
        stacks: the interned stacks.
        pools: memory pool ids; the default pool is first.
        rounding_pad: bytes that the writer's allocator adds to a request before rounding (torch_npu: 32).
        host_bytes: bytes of pinned host segments, None where the file has none.
        reordered: devices whose trace was not in order of time and was sorted.
        unknown_keys: top-level keys that this version does not read.
        sidecar: what ``snapana.record`` wrote beside the file, None where there is nothing.

    """

    info: InputInfo
    generation: str
    settings: AllocatorSettings
    has_settings: bool
    events: pd.DataFrame
    segments: pd.DataFrame
    blocks: pd.DataFrame
    annotations: pd.DataFrame
    stacks: Stacks
    pools: tuple[tuple[int, int], ...] = (DEFAULT_POOL,)
    rounding_pad: int = 0
    host_bytes: int | None = None
    reordered: tuple[int, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    sidecar: Sidecar | None = None

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Devices that have events or segments, ascending."""
        return tuple(sorted({*self.events["device"].unique().tolist(), *self.segments["device"].unique().tolist()}))

    @cached_property
    def replay(self) -> Replay:
        """What the allocator did, exactly: computed on first use."""
        from snapana.allocator.replay import replay_snapshot

        return replay_snapshot(self)

    def events_of(self, device: int) -> pd.DataFrame:
        """Give the events of one device, indexed from 0."""
        chosen = self.events
        if len(self.devices) > 1:
            chosen = chosen[chosen["device"] == device]
        return chosen.reset_index(drop=True)
