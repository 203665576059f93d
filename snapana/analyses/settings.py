"""Allocator settings that fight each other, or that changed nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapana.allocator.rounding import Rounding
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes


@dataclass(frozen=True)
class SettingsCheck:
    """One remark about the settings.

    Attributes:
        kind: ``conflict`` or ``no_effect``.
        severity: as of findings.
        message: what was seen.
        advice: what to do.

    """

    kind: str
    severity: str
    message: str
    advice: str


def check_settings(snapshot: Snapshot, device: int) -> list[SettingsCheck]:
    """Look at the recorded settings in the light of what one device did."""
    settings, replay = snapshot.settings, snapshot.replay[device]
    found = []
    expandable = bool(replay.segments["expandable"].any())
    if settings.expandable_segments and settings.max_split_size is not None:
        found.append(
            SettingsCheck(
                "conflict",
                "medium",
                f"expandable_segments and max_split_size_mb are both set: free parts of expandable segments above "
                f"{format_bytes(settings.max_split_size)} then serve no smaller request, so the segments grow instead.",
                "Drop max_split_size_mb: expandable segments do what it was for.",
            )
        )
    if settings.expandable_segments and len(replay.segments) and not expandable:
        found.append(
            SettingsCheck(
                "conflict",
                "medium",
                "expandable_segments is set, yet no segment of the recording is expandable.",
                "Set PYTORCH_CUDA_ALLOC_CONF before the first allocation; the platform may not support it either.",
            )
        )
    if settings.max_split_size is not None and not expandable:
        largest = int(replay.segments["size"].max()) if len(replay.segments) else 0
        if largest < settings.max_split_size:
            found.append(_no_effect("max_split_size_mb", f"no segment reached {format_bytes(settings.max_split_size)}"))
    if any(division > 1 for division in settings.roundup_power2_divisions):
        sizes = np.unique(replay.allocations["requested"].to_numpy())
        plain = Rounding(pad=snapshot.rounding_pad).round_sizes(sizes)
        divided = Rounding(settings.roundup_power2_divisions, snapshot.rounding_pad).round_sizes(sizes)
        if np.array_equal(plain, divided):
            found.append(_no_effect("roundup_power2_divisions", "no request was rounded differently because of it"))
    actions = replay.events["action"]
    if settings.garbage_collection_threshold > 0 and not actions.isin(["segment_free", "segment_unmap"]).any():
        found.append(
            _no_effect(
                "garbage_collection_threshold",
                "nothing was collected; it acts only together with a limit (set_per_process_memory_fraction)",
            )
        )
    return found


def _no_effect(name: str, why: str) -> SettingsCheck:
    return SettingsCheck(
        "no_effect", "info", f"{name} is set but changed nothing in this recording: {why}.", "Leave it out."
    )
