"""The allocator settings: ``PYTORCH_CUDA_ALLOC_CONF``, parsed as PyTorch parses it, or as a snapshot holds them.

Rules: c10/cuda/CUDAAllocatorConfig.cpp and c10/core/AllocatorConfig.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from snapana.allocator.rounding import DIVISION_SLOTS, LARGE_SEGMENT
from snapana.errors import SnapanaError
from snapana.plain import plain_text

_MIB = 1024**2
_CONF_KEYS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings that decide where a request goes.

    Attributes:
        conf: the string that was set last; empty for the defaults.
        expandable_segments: map pages into reserved address ranges instead of allocating segments.
        max_split_size: blocks of at least so many bytes are never split; None for no such limit.
        max_non_split_rounding: such a block may serve a request smaller by less than this, in bytes.
        garbage_collection_threshold: fraction of the limit above which old segments are freed; 0 is off.
        roundup_power2_divisions: by slot, see ``Rounding``.
        large_segment_size: bytes of a segment for requests between 1 and 10 MiB.
        per_process_memory_fraction: fraction of the card that PyTorch may reserve; None if not in the conf.

    """

    conf: str = ""
    expandable_segments: bool = False
    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_SLOTS
    large_segment_size: int = LARGE_SEGMENT
    per_process_memory_fraction: float | None = None


def from_snapshot(raw: Mapping[str, Any] | None) -> AllocatorSettings:
    """Read a snapshot's ``allocator_settings``; resolved values win over the string, oddities are passed over."""
    if raw is None:
        return AllocatorSettings()
    conf = next((plain_text(raw[key]) for key in _CONF_KEYS if isinstance(raw.get(key), str)), "")
    try:
        parsed = parse_conf(conf)
    except SnapanaError:
        # A newer PyTorch took it: what it resolved to is what counts.
        parsed = AllocatorSettings(conf=conf)
    split = raw.get("max_split_size")
    threshold = raw.get("garbage_collection_threshold")
    expandable = raw.get("expandable_segments")
    divisions = raw.get("roundup_power2_divisions")
    return replace(
        parsed,
        expandable_segments=expandable if isinstance(expandable, bool) else parsed.expandable_segments,
        max_split_size=_split_size(split) if isinstance(split, int) else parsed.max_split_size,
        garbage_collection_threshold=float(threshold)
        if isinstance(threshold, (int, float))
        else parsed.garbage_collection_threshold,
        roundup_power2_divisions=_resolved_divisions(divisions)
        if isinstance(divisions, Mapping)
        else parsed.roundup_power2_divisions,
    )


def _split_size(value: int) -> int | None:
    """SIZE_MAX, also as -1, stands for no limit."""
    return value if 0 <= value < 2**62 else None


def _resolved_divisions(table: Mapping[Any, Any]) -> tuple[int, ...]:
    values = {plain_text(key): value for key, value in table.items()}
    found = [values.get(str(2**slot), 0) for slot in range(DIVISION_SLOTS)]
    return tuple(value if isinstance(value, int) and value > 0 else 0 for value in found)


def parse_conf(text: str) -> AllocatorSettings:
    """Parse a ``PYTORCH_CUDA_ALLOC_CONF`` string.

    Raises:
        SnapanaError: ``settings.invalid``, where PyTorch would refuse it.

    """
    settings = AllocatorSettings(conf=text)
    entries = _entries(text)
    large = entries.pop("large_segment_size_mb", None)
    if large is not None:
        size = _integer("large_segment_size_mb", large) * _MIB
        _require(size > 10 * _MIB, "large_segment_size_mb must be greater than 10")
        settings = replace(settings, large_segment_size=size, max_non_split_rounding=size)
    for key, value in entries.items():
        settings = _apply(settings, key, value)
    return settings


def _apply(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    least = settings.large_segment_size // _MIB
    if key == "max_split_size_mb":
        size = _integer(key, value)
        _require(size >= least, f"max_split_size_mb must be at least {least}")
        return replace(settings, max_split_size=size * _MIB)
    if key == "max_non_split_rounding_mb":
        size = _integer(key, value)
        _require(size >= least, f"max_non_split_rounding_mb must be at least {least}")
        return replace(settings, max_non_split_rounding=size * _MIB)
    if key == "garbage_collection_threshold":
        threshold = _number(key, value)
        _require(0 < threshold < 1, "garbage_collection_threshold must lie between 0 and 1, both excluded")
        return replace(settings, garbage_collection_threshold=threshold)
    if key == "per_process_memory_fraction":
        fraction = _number(key, value)
        _require(0 <= fraction <= 1, "per_process_memory_fraction must lie between 0 and 1")
        return replace(settings, per_process_memory_fraction=fraction)
    if key == "expandable_segments":
        _require(value in {"True", "False"}, "expandable_segments must be True or False, so written")
        return replace(settings, expandable_segments=value == "True")
    if key == "roundup_power2_divisions":
        return replace(settings, roundup_power2_divisions=_divisions(value))
    if key == "backend":
        _require(value == "native", f"backend {value!r} has no memory history; only native can be modelled")
        return settings
    _require(
        key in _WITHOUT_EFFECT or key.startswith(("pinned_", "expandable_segments_reserve")),
        f"unknown option {key!r}",
    )
    return settings


# They change timing, captures or errors, never where a request goes.
_WITHOUT_EFFECT = {
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
}


def _entries(text: str) -> dict[str, str]:
    """Split ``key:value`` pairs at commas outside of brackets; white space means nothing."""
    compact = "".join(text.split())
    entries: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", compact):
        if not part:
            continue
        key, colon, value = part.partition(":")
        _require(bool(colon and key and value), f"{part!r} is not key:value")
        entries[key] = value
    return entries


def _divisions(value: str) -> tuple[int, ...]:
    """Parse ``4`` or ``[256:1,512:2,>:8]``: keys in MiB; the first fills all below, ``>`` all above the last."""
    if not value.startswith("["):
        return (_power_of_two(value),) * DIVISION_SLOTS
    _require(value.endswith("]"), "roundup_power2_divisions lacks its closing bracket")
    table = [0] * DIVISION_SLOTS
    last = -1
    for position, pair in enumerate(value[1:-1].split(",")):
        key, _, number = pair.partition(":")
        division = _power_of_two(number)
        if key == ">":
            table[last + 1 :] = [division] * (DIVISION_SLOTS - last - 1)
            continue
        size = _integer("roundup_power2_divisions", key)
        _require(size > 0 and size & (size - 1) == 0, "roundup_power2_divisions: sizes must be powers of two")
        last = min(size.bit_length() - 1, DIVISION_SLOTS - 1)
        first = 0 if position == 0 else last
        table[first : last + 1] = [division] * (last + 1 - first)
    return tuple(table)


def _power_of_two(text: str) -> int:
    value = _integer("roundup_power2_divisions", text)
    _require(value & (value - 1) == 0, "roundup_power2_divisions: divisions must be 0 or powers of two")
    return value


def _integer(key: str, text: str) -> int:
    _require(text.isascii() and text.isdigit(), f"{key} needs a whole number, not {text!r}")
    return int(text)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SnapanaError("settings.invalid", f"{key} needs a number, not {text!r}.") from None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SnapanaError("settings.invalid", f"Allocator settings: {message}.")
