"""Every generation of snapshot file becomes the one model.

Keys and their history: torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/_memory_viz.py of PyTorch 1.13
to 2.14, and the forks for Ascend (torch_npu) and Intel (XPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.rounding import SMALL_SIZE, Rounding
from snapana.allocator.settings import from_snapshot
from snapana.errors import SnapanaError
from snapana.plain import plain_text
from snapana.snapshot.model import ACTION_CODE, ACTIONS, DEFAULT_POOL, InputInfo, Snapshot
from snapana.snapshot.stacks import StackInterner, Stacks, first_occurrence
from snapana.snapshot.unpickle import without_gc

IntArray = npt.NDArray[np.int64]
Rows = Sequence[Mapping[str, Any]]

_MASK = 2**64 - 1
KNOWN_KEYS = {
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
}
_STATES = {
    "active_allocated": "allocated",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",
    "inactive": "free",
}
_STATE_NAMES = ("allocated", "pending", "free")
NPU_PAD = 32


def normalise(document: object, info: InputInfo) -> Snapshot:
    """Build the model from a decoded file.

    Args:
        document: builtins only: the dict of ``_snapshot()`` of any PyTorch, or the list of ``memory_snapshot()``.
        info: where it came from.

    Raises:
        SnapanaError: ``input.not_a_snapshot``, ``input.malformed`` or ``input.no_history``.

    """
    with without_gc():
        try:
            return _normalise(_as_snapshot_dict(document, info), info)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError) as error:
            raise _malformed(info, f"{type(error).__name__}: {plain_text(str(error))[:120]}") from error


def _malformed(info: InputInfo, what: str) -> SnapanaError:
    return SnapanaError(
        "input.malformed",
        f"{info.name} has the keys of a memory snapshot, but its values are not what PyTorch writes ({what}).",
        "Was it changed by another tool? Use the file that _dump_snapshot wrote.",
    )


def _as_snapshot_dict(document: object, info: InputInfo) -> Mapping[str, Any]:
    if isinstance(document, dict) and ("segments" in document or "device_traces" in document):
        return document
    if isinstance(document, list) and document and all(_is_segment(item) for item in document[:3]):
        return {"segments": document}
    raise SnapanaError(
        "input.not_a_snapshot",
        f"{info.name} is no memory snapshot: it looks like {_describe(document)}.",
        "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path).",
    )


def _is_segment(item: object) -> bool:
    return isinstance(item, dict) and "total_size" in item and "blocks" in item


def _describe(document: object) -> str:
    if isinstance(document, dict):
        if not document:
            return "an empty dict"
        keys = [plain_text(key)[:40] for key in list(document)[:5]]
        if "traceEvents" in document:
            return "a profiler trace that was pickled"
        if any(key.endswith((".weight", ".bias")) for key in keys):
            return f"a model's state_dict (keys {', '.join(keys)})"
        if "allocated_bytes.all.current" in document:
            return "the dict of torch.cuda.memory_stats()"
        return f"a dict with the keys {', '.join(keys)}"
    if isinstance(document, list):
        if not document:
            return "an empty list (torch.cuda.memory_snapshot() before anything was allocated)"
        return f"a list of {len(document):,} items of type {type(document[0]).__name__}"
    return f"a single value of type {type(document).__name__}"


def _normalise(raw: Mapping[str, Any], info: InputInfo) -> Snapshot:
    segments_raw, traces = raw.get("segments", []), raw.get("device_traces", [])
    if not isinstance(segments_raw, list) or not isinstance(traces, list):
        raise TypeError("segments and device_traces must be lists")
    if not all(isinstance(trace, list) for trace in traces):
        raise TypeError("each trace must be a list")
    if not segments_raw and not any(traces):
        raise SnapanaError(
            "input.no_history",
            f"{info.name} is a memory snapshot, but holds neither segments nor events.",
            "Call torch.cuda.memory._record_memory_history(max_entries=100000) before the model is built, "
            "and torch.cuda.memory._dump_snapshot(path) in the process that used the GPU.",
        )
    recorded = [(device, trace) for device, trace in enumerate(traces) if trace]
    _check_distinct(segments_raw, "segment")
    block_rows = [block for segment in segments_raw for block in _blocks_of(segment)]
    _check_distinct(block_rows, "block")
    for _, trace in recorded:
        _check_distinct(trace, "event")
    stacks, captured = _read_stacks(
        [segments_raw, [_with_latest_frames(row) for row in block_rows], *(trace for _, trace in recorded)]
    )
    pools: dict[tuple[int, int], int] = {DEFAULT_POOL: 0}
    segments = _read_segments(segments_raw, captured[0], pools)
    blocks = _read_blocks(segments_raw, block_rows, segments, captured[1])
    per_device = [
        _read_trace(trace, device, stacks_of, pools)
        for (device, trace), stacks_of in zip(recorded, captured[2:], strict=True)
    ]
    reordered = tuple(int(frame["device"].iloc[0]) for frame in per_device if not _in_order(frame))
    events = _join_events([_by_time(frame) for frame in per_device])
    settings = raw.get("allocator_settings")
    annotations = [
        *_read_annotations(raw.get("external_annotations") or []),
        *(_user_defined(traces) if (events["action"] == "user_defined").any() else ()),
    ]
    npu = _pads_requests(blocks)
    return Snapshot(
        info=info,
        generation=_generation(raw, segments_raw, traces, npu=npu),
        settings=from_snapshot(settings if isinstance(settings, dict) else None),
        has_settings=isinstance(settings, dict),
        events=events,
        segments=segments,
        blocks=blocks,
        annotations=_annotation_frame(annotations),
        stacks=stacks,
        pools=tuple(pools),
        rounding_pad=NPU_PAD if npu else 0,
        host_bytes=_host_bytes(raw.get("host_segments")),
        reordered=reordered,
        unknown_keys=tuple(plain_text(key)[:80] for key in raw if key not in KNOWN_KEYS),
    )


def _check_distinct(rows: Rows, what: str) -> None:
    """Refuse a list that names one object many times: a small file could unfold to anything."""
    if len(pd.unique(np.fromiter(map(id, rows), dtype=np.int64, count=len(rows)))) != len(rows):
        raise ValueError(f"one {what} is listed several times")


# ---- columns


def _ints(values: Iterable[Any]) -> IntArray:
    """Read integers as int64; those of 2**63 and more wrap, as the C++ writer does.

    Whole floats are taken, since JSON may have them; text is not.
    """
    values = list(values)
    found = np.array(values) if values else np.zeros(0, dtype=np.int64)
    if found.shape != (len(values),):
        raise TypeError("a list where a number belongs")
    if found.dtype == np.int64:
        return found
    if not set(map(type, values)) <= {int, float, bool}:
        raise TypeError("something else where a number belongs")
    whole = [int(value) for value in values]
    if whole != values:
        raise ValueError("a fraction where a whole number belongs")
    if not all(-(2**63) <= value < 2**64 for value in whole):
        raise OverflowError("a number of more than 64 bits")
    return np.array([value & _MASK for value in whole], dtype=np.uint64).view(np.int64)


def _column(rows: Rows, key: str, default: Any) -> list[Any]:
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, default) for row in rows]


def _int_column(rows: Rows, key: str, default: int = 0) -> IntArray:
    return _ints(_column(rows, key, default))


def _address_column(rows: Rows, key: str) -> npt.NDArray[np.uint64]:
    return _int_column(rows, key).view(np.uint64)


# No card has more than a few TiB, no recording asks for more than some EiB in all.
_LARGEST, _LARGEST_SUM = 2**50, 2.0**62


def _size_column(rows: Rows, key: str, default: int = 0) -> IntArray:
    return _checked_sizes(_int_column(rows, key, default), default)


def _checked_sizes(sizes: IntArray, least: int = 0) -> IntArray:
    if not len(sizes):
        return sizes
    if int(sizes.min()) < min(least, 0):
        raise ValueError("a negative size")
    if int(sizes.max()) > _LARGEST or float(sizes.sum(dtype=np.float64)) > _LARGEST_SUM:
        raise ValueError("sizes beyond any card")
    return sizes


def _categorical(codes: Any, names: Iterable[str]) -> Any:
    return pd.Categorical.from_codes(codes, categories=pd.Index(list(names), dtype=object))


def _texts(values: list[Any]) -> Any:
    if not set(map(type, values)) <= {str}:
        values = [plain_text(value) for value in values]
    codes, found = pd.factorize(np.array(values, dtype=object))
    names = [plain_text(value) for value in found]
    if len(set(names)) < len(names):
        return pd.Categorical([plain_text(value) for value in values])
    return _categorical(codes, names)


@dataclass(frozen=True)
class _Captured:
    """The captured stacks of one table's rows: stack id and number of the shared object, -1 for none."""

    stack: IntArray
    context: IntArray


def _read_stacks(tables: Sequence[Rows]) -> tuple[Stacks, list[_Captured]]:
    """Intern the stacks of all tables at once: rows of different tables share captured objects."""
    rows = list(chain.from_iterable(tables))
    lists = [row.get("frames") for row in rows]
    codes, distinct = pd.factorize(np.fromiter(map(id, lists), dtype=np.int64, count=len(lists)))
    found = [lists[row] for row in first_occurrence(codes, len(distinct)).tolist()]
    if not set(map(type, found)) <= {list, type(None)}:
        raise TypeError("frames must be a list")
    interner = StackInterner()
    ids = interner.add_many([frames or () for frames in found])
    numbers = np.where(distinct == id(None), -1, np.arange(len(found)))
    stack, context = (ids[codes], numbers[codes]) if len(codes) else (ids, numbers)
    forward = _forward_stacks(rows, stack)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    captured = [
        _Captured(one, other) for one, other in zip(np.split(stack, ends), np.split(context, ends), strict=True)
    ]
    return interner.finish(forward), captured


def _forward_stacks(rows: Rows, stack: IntArray) -> dict[int, Any]:
    """Find ``forward_frames`` (anomaly mode). Rows that have it are longer than others: look at one of each length."""
    _, examples = np.unique(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), return_index=True)
    if not any("forward_frames" in rows[example] for example in examples.tolist()):
        return {}
    return {int(stack[number]): row["forward_frames"] for number, row in enumerate(rows) if "forward_frames" in row}


# ---- final state


def _blocks_of(segment: Mapping[str, Any]) -> Rows:
    return segment.get("blocks") or ()


# More than any machine has; each costs a replay of its own.
_MOST_DEVICES = 1024


def _device_column(raw: Rows) -> IntArray:
    devices = _int_column(raw, "device")
    if len(devices) and not 0 <= int(devices.min()) <= int(devices.max()) < _MOST_DEVICES:
        raise ValueError("a device that no machine has")
    return devices


def _read_segments(raw: Rows, captured: _Captured, pools: dict[tuple[int, int], int]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "device": _device_column(raw),
            "address": _address_column(raw, "address"),
            "size": _size_column(raw, "total_size"),
            "allocated": _size_column(raw, "allocated_size", -1),
            "active": _size_column(raw, "active_size", -1),
            "requested": _size_column(raw, "requested_size", -1),
            "stream": _address_column(raw, "stream"),
            "pool": _ints(_pool_code(row.get("segment_pool_id"), pools, unknown=0) for row in raw),
            "small": np.array([row.get("segment_type") == "small" for row in raw], dtype=bool),
            "expandable": np.array([bool(row.get("is_expandable")) for row in raw], dtype=bool),
            "stack": captured.stack,
        }
    )


def _read_blocks(
    raw: Rows,
    rows: Rows,
    segments: pd.DataFrame,
    captured: _Captured,
) -> pd.DataFrame:
    counts = np.array([len(_blocks_of(segment)) for segment in raw], dtype=np.int64)
    segment = np.repeat(np.arange(len(raw), dtype=np.int64), counts)
    size = _size_column(rows, "size")
    state = np.array([_state_code(row.get("state")) for row in rows], dtype=np.int8)
    return pd.DataFrame(
        {
            "segment": segment,
            "device": segments["device"].to_numpy()[segment],
            "address": _block_addresses(rows, segments["address"].to_numpy()[segment], size, counts),
            "size": size,
            "requested": np.where(state == 2, 0, _requested(rows)),
            "state": _categorical(state, _STATE_NAMES),
            "stack": captured.stack,
            "context": captured.context,
        }
    )


def _state_code(state: Any) -> int:
    name = _STATES.get(state) if isinstance(state, str) else None
    if name is None:
        raise ValueError(f"unknown block state {plain_text(state)!r}")
    return _STATE_NAMES.index(name)


def _block_addresses(
    rows: Rows,
    bases: npt.NDArray[np.uint64],
    size: IntArray,
    counts: IntArray,
) -> npt.NDArray[np.uint64]:
    """Blocks tile their segment in order, so sizes give the addresses that old files lack."""
    if all("address" in row for row in rows):
        return _address_column(rows, "address")
    ends = np.cumsum(size)
    starts = ends - size
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return bases + (starts - starts[first]).astype(np.uint64)


def _requested(rows: Rows) -> IntArray:
    """Bytes asked for; PyTorch 1.13 and 2.0 keep them in ``history``, newest first."""
    asked = _column(rows, "requested_size", None)
    if None in asked:
        asked = [
            _latest(row).get("real_size", row.get("size", 0)) if known is None else known
            for known, row in zip(asked, rows, strict=True)
        ]
    return _checked_sizes(_ints(asked))


def _latest(row: Mapping[str, Any]) -> Mapping[str, Any]:
    history = row.get("history")
    latest: Mapping[str, Any] = history[0] if history else {}
    return latest


def _with_latest_frames(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a row whose ``frames`` are where newer files have them."""
    if "history" not in row:
        return row
    latest = _latest(row)
    if "frames" not in latest and isinstance(latest.get("cpp_frames"), str):
        return {"frames": [line.strip() for line in latest["cpp_frames"].splitlines() if line.strip()]}
    return latest


def _pool_code(pool: Any, pools: dict[tuple[int, int], int], *, unknown: int) -> int:
    if pool is None:
        return unknown
    first, second = _ints(pool).tolist()
    return pools.setdefault((first, second), len(pools))


def _pads_requests(blocks: pd.DataFrame) -> bool:
    """torch_npu adds 32 bytes to every request: seen from blocks that fit in no other way."""
    live = blocks[(blocks["state"] != "free") & (blocks["size"] <= SMALL_SIZE) & (blocks["requested"] > 0)]
    requested, size = live["requested"].to_numpy(), live["size"].to_numpy()
    plain, padded = Rounding(), Rounding(pad=NPU_PAD)
    return bool((padded.round_sizes(requested) == size).all() and (plain.round_sizes(requested) != size).any())


# ---- events


def _read_trace(trace: Rows, device: int, captured: _Captured, pools: dict[tuple[int, int], int]) -> pd.DataFrame:
    count = len(trace)
    actions = _actions(trace)
    pool_ids = _column(trace, "pool_id", None) if any("pool_id" in row for row in trace[:100]) else None
    return pd.DataFrame(
        {
            "device": np.full(count, device, dtype=np.int16),
            "index": np.arange(count, dtype=np.int64),
            "action": actions,
            "addr": _address_column(trace, "addr"),
            "size": _size_column(trace, "size"),
            "stream": _address_column(trace, "stream"),
            "pool": np.full(count, -1, dtype=np.int64)
            if pool_ids is None
            else _ints(_pool_code(pool, pools, unknown=-1) for pool in pool_ids),
            "time_us": _int_column(trace, "time_us", -1),
            "stack": captured.stack.astype(np.int32),
            "context": captured.context.astype(np.int32),
            "compile_context": _texts(_column(trace, "compile_context", "")),
            "user_metadata": _texts(_column(trace, "user_metadata", "")),
            "device_free": _device_free(trace, actions),
        }
    )


def _actions(trace: Rows) -> Any:
    actions = _column(trace, "action", "")
    if not set(map(type, actions)) <= {str}:
        raise TypeError("an action that is no text")
    codes, names = pd.factorize(np.array(actions, dtype=object))
    known = dict(ACTION_CODE)
    numbers = [known.setdefault(plain_text(name), len(known)) for name in names]
    return _categorical(np.array(numbers, dtype=np.int64)[codes], known)


def _device_free(trace: Rows, actions: Any) -> IntArray:
    free = np.full(len(trace), -1, dtype=np.int64)
    for position in np.flatnonzero(actions.codes == ACTION_CODE["oom"]).tolist():
        free[position] = _int(trace[position].get("device_free", -1))
    return free


def _in_order(frame: pd.DataFrame) -> bool:
    return bool(frame["time_us"].is_monotonic_increasing)


def _by_time(frame: pd.DataFrame) -> pd.DataFrame:
    """A ring that was made smaller while recording is rotated: put it in order of time."""
    if _in_order(frame):
        return frame
    ordered = frame.sort_values("time_us", kind="stable", ignore_index=True)
    ordered["index"] = np.arange(len(ordered), dtype=np.int64)
    return ordered


def _join_events(per_device: list[pd.DataFrame]) -> pd.DataFrame:
    if not per_device:
        none = np.zeros(0, dtype=np.int64)
        return _read_trace([], 0, _Captured(none, none), {})
    if len(per_device) == 1:
        return per_device[0]
    names = [name for frame in per_device for name in frame["action"].cat.categories]
    same = [frame.astype({"action": _action_type(names)}) for frame in per_device]
    for column in ("compile_context", "user_metadata"):
        texts = sorted({text for frame in same for text in frame[column].cat.categories})
        same = [frame.astype({column: pd.CategoricalDtype(texts)}) for frame in same]
    return pd.concat(same, ignore_index=True)


def _action_type(names: Iterable[str]) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(list(dict.fromkeys([*ACTIONS, *names])))


# ---- annotations and the rest


def _read_annotations(raw: Any) -> list[tuple[str, int, int, int]]:
    marks = [
        (
            plain_text(row.get("name", "")),
            plain_text(row.get("stage", "")),
            _int(row.get("device", 0)),
            _int(row.get("time_us", -1)),
        )
        for row in raw
    ]
    return _match_spans(marks)


def _int(value: Any) -> int:
    return int(_ints([value])[0])


def _user_defined(traces: Sequence[Rows]) -> list[tuple[str, int, int, int]]:
    """PyTorch 2.4 wrote annotations as events whose frame carries stage and name."""
    marks = []
    for device, trace in enumerate(traces):
        for row in trace:
            if row.get("action") == "user_defined" and row.get("frames"):
                frame = row["frames"][0]
                marks.append(
                    (
                        plain_text(frame.get("filename", "")),
                        plain_text(frame.get("name", "")),
                        device,
                        _int(row.get("time_us", -1)),
                    )
                )
    return _match_spans(marks)


def _match_spans(marks: Iterable[tuple[str, str, int, int]]) -> list[tuple[str, int, int, int]]:
    """Match each END to the latest open START of its name; orphans keep -1 for what is missing."""
    spans: list[tuple[str, int, int, int]] = []
    open_starts: dict[str, list[int]] = {}
    for name, stage, device, time_us in marks:
        if stage == "START":
            open_starts.setdefault(name, []).append(len(spans))
            spans.append((name, device, time_us, -1))
        elif open_starts.get(name):
            position = open_starts[name].pop()
            spans[position] = (name, spans[position][1], spans[position][2], time_us)
        else:
            spans.append((name, device, -1, time_us))
    return spans


def _annotation_frame(spans: list[tuple[str, int, int, int]]) -> pd.DataFrame:
    frame = pd.DataFrame(spans, columns=["name", "device", "start_us", "end_us"])
    return frame.astype({"name": object, "device": "int64", "start_us": "int64", "end_us": "int64"})


def _host_bytes(raw: Any) -> int | None:
    """Sum pinned host segments, whose key names are not settled: any of the likely ones."""
    if not isinstance(raw, list) or not raw:
        return None
    sizes = [row.get("total_size", row.get("size")) for row in raw if isinstance(row, dict)]
    known = [size for size in sizes if isinstance(size, int)]
    return sum(known) if known else None


def _first(rows: Iterable[Any], has: Callable[[Mapping[str, Any]], bool]) -> bool:
    return any(has(row) for row in rows)


def _generation(
    raw: Mapping[str, Any],
    segments: Rows,
    traces: Sequence[Rows],
    *,
    npu: bool,
) -> str:
    """Guess the writer from the keys that it wrote."""
    blocks = [block for segment in segments for block in segment.get("blocks") or []]
    entries = [trace[0] for trace in traces if trace]
    settings = raw.get("allocator_settings")
    actions = {row.get("action") for trace in traces for row in trace[:50_000]}
    entry: set[str] = set().union(*entries) if entries else set()
    if npu or "workspace_snapshot" in actions:
        return "torch_npu"
    if isinstance(settings, dict) and "PYTORCH_ALLOC_CONF" in settings and "PYTORCH_CUDA_ALLOC_CONF" not in settings:
        return "torch (XPU)"
    if _first(blocks, lambda block: "history" in block):
        return "torch 1.13-2.0"
    if "device_traces" not in raw:
        return "memory_snapshot() list" if _first(blocks, lambda block: "address" in block) else "torch 1.13-2.0 list"
    if "host_segments" in raw or "annotate" in actions:
        return "torch 2.14 or newer"
    if "pool_id" in entry:
        return "torch_npu" if "time_us" not in entry else "torch 2.12-2.13"
    if not isinstance(settings, dict):
        return "torch 2.2" if "time_us" in entry else "torch 2.0-2.1"
    if "external_annotations" not in raw:
        return "torch 2.4" if "user_defined" in actions else "torch 2.3-2.4"
    if not entries:
        return "torch 2.10 or newer" if "graph_capture_record_stream_reuse" in settings else "torch 2.5 or newer"
    if "compile_context" not in entry:
        return "torch 2.5-2.7"
    return "torch 2.10-2.11" if "user_metadata" in entry else "torch 2.8-2.9"
