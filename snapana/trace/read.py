"""Reads a Chrome trace: only what memory needs is decoded, one event at a time.

Fields and their history: kineto's output_json.cpp, torch/csrc/profiler/collection.cpp, and the exporters of torch 1.8
to 2.13.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from snapana.errors import SnapanaError
from snapana.plain import plain_text
from snapana.snapshot.model import InputInfo
from snapana.trace.model import DeviceProperties, FloatArray, MemoryEvents, Spans, Trace
from snapana.trace.repair import Repaired, repair_event, repair_top


class _Arguments(msgspec.Struct, gc=False):
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    bytes: Any = msgspec.field(name="Bytes", default=None)
    device: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    address: Any = msgspec.field(name="Addr", default=None)
    order: Any = msgspec.field(name="Ev Idx", default=None)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)


class _Event(msgspec.Struct, gc=False):
    name: Any = ""
    cat: Any = ""
    ts: Any = None
    dur: Any = None
    tid: Any = 0
    args: _Arguments | None = None


class _Device(msgspec.Struct):
    id: Any = None
    name: Any = ""
    total: Any = msgspec.field(name="totalGlobalMem", default=None)


class _Distributed(msgspec.Struct):
    rank: Any = None
    world_size: Any = None


class _Top(msgspec.Struct):
    """The top level: what is not named here, such as the environment of the job, is never looked at."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents", default_factory=list)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=msgspec.Raw(b"[]"))
    distributed: msgspec.Raw = msgspec.field(name="distributedInfo", default=msgspec.Raw(b"{}"))
    base: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


# Events that say nothing of memory need not be decoded: flows and metadata by phase, the rest by category.
_SKIPPED = re.compile(
    rb'"ph": ?"[sfMtC]"|"cat": ?"(?:ac2g|fwdbwd|async\w*|forward_backward|[kK]ernel|gpu_\w+|Mem(?:cpy|set)|overhead'
    rb'|hardware_counters|cuda_(?:sync|event))"'
)
_HEAD = 100
_OPERATOR, _PYTHON, _ANNOTATION, _RUNTIME = range(4)
_KINDS = {
    "cpu_op": _OPERATOR,
    "Operator": _OPERATOR,
    "operator": _OPERATOR,
    "python_function": _PYTHON,
    "user_annotation": _ANNOTATION,
    "cuda_runtime": _RUNTIME,
    "cuda_driver": _RUNTIME,
    "runtime": _RUNTIME,
    "Runtime": _RUNTIME,
    "xpu_runtime": _RUNTIME,
    "privateuse1_runtime": _RUNTIME,
}
# Runtime and driver calls that get or give back memory, or that wait for it.
MEMORY_CALLS = frozenset(
    {
        *(f"{prefix}{name}" for prefix in ("cuda", "hip") for name in ("Malloc", "Free", "MallocAsync", "FreeAsync")),
        *(f"{prefix}{name}" for prefix in ("cuda", "hip") for name in ("HostAlloc", "FreeHost", "HostMalloc")),
        *(
            f"cuMem{name}"
            for name in ("Create", "Map", "Unmap", "Release", "SetAccess", "AddressReserve", "AddressFree")
        ),
        *(f"hipMem{name}" for name in ("Create", "Map", "Unmap", "Release", "SetAccess", "AddressReserve")),
    }
)


def read_trace(payload: bytes, info: InputInfo, progress: Callable[[str], None] = lambda text: None) -> Trace:
    """Decode a trace.

    Args:
        payload: JSON: the object of kineto, or a list of events.
        info: where it came from.
        progress: told how far it is.

    Raises:
        SnapanaError: ``input.corrupt`` where nothing of it can be read, ``input.not_a_trace`` where it holds no events.

    """
    repaired = Repaired()
    was_on = gc.isenabled()
    gc.disable()
    try:
        top, raws = _split(payload, info, repaired)
        return _Reader(info, top, repaired).read(raws, progress)
    finally:
        if was_on:
            gc.enable()


def _split(payload: bytes, info: InputInfo, repaired: Repaired) -> tuple[_Top, list[Any]]:
    """Separate the events from each other, strictly if that is possible."""
    text = payload.removeprefix(b"\xef\xbb\xbf")
    try:
        if text[:200].lstrip()[:1] == b"[":
            return _Top(), msgspec.json.decode(text, type=list[msgspec.Raw])
        top = msgspec.json.decode(text, type=_Top)
        return top, top.events
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found, pieces = repair_top(text, repaired)
        if not pieces:
            what = plain_text(str(error))[:120]
            raise SnapanaError(
                "input.corrupt", f"{info.name} is damaged JSON, no event could be saved ({what}).", "Copy it again."
            ) from None
    top = _Top()
    if "deviceProperties" in found:
        top.devices = msgspec.Raw(found["deviceProperties"])
    if "distributedInfo" in found:
        top.distributed = msgspec.Raw(found["distributedInfo"])
    if "baseTimeNanoseconds" in found:
        top.base = _decoded(found["baseTimeNanoseconds"])
    return top, pieces


def _decoded(text: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Decode a piece of metadata; None where it cannot be."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_BLOCK = 20_000


class _Columns:
    """Ranges of one kind while they are read: a few as tuples, the others packed."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, float, float, int, int]] = []
        self._blocks: list[FloatArray] = []

    def pack(self) -> None:
        """Pack the rows read so far: as tuples they take four times the memory."""
        if self.rows:
            self._blocks.append(np.array(self.rows, dtype=np.float64))
            self.rows.clear()

    def finish(self, names: list[str]) -> Spans:
        self.pack()
        table = np.concatenate(self._blocks) if self._blocks else np.zeros((0, 6))
        self._blocks.clear()
        # Outer ranges go before inner ones that start with them.
        table = table[np.lexsort((-table[:, 3], table[:, 2], table[:, 1]))]
        integer = [table[:, column].astype(np.int64) for column in (0, 1, 4, 5)]
        start, end = table[:, 2].copy(), table[:, 3].copy()
        return Spans(integer[0], integer[1], start, end, integer[2], integer[3], names)


class _Reader:
    def __init__(self, info: InputInfo, top: _Top, repaired: Repaired) -> None:
        self.info = info
        self.top = top
        self.repaired = repaired
        self.names: dict[str, int] = {}
        self.threads: dict[Any, int] = {}
        self.spans = [_Columns() for _ in range(4)]
        self.memory: list[tuple[Any, ...]] = []
        self.latest = 0.0

    def read(self, raws: list[Any], progress: Callable[[str], None]) -> Trace:
        decode, skip, take = msgspec.json.Decoder(_Event).decode, _SKIPPED.search, self._take
        count = 0
        for raw in raws:
            # Each piece is let go once it is read.
            raws[count] = None
            count += 1
            if count % _BLOCK == 0:
                progress(f"Reading events: {count:,} of {len(raws):,}")
                for one in self.spans:
                    one.pack()
            text = bytes(raw)
            if skip(text, 0, _HEAD):
                continue
            try:
                take(decode(text))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                event = _lenient(repair_event(text, self.repaired))
                if event is not None:
                    take(event)
        return self._finish(count)

    def _take(self, event: _Event) -> None:
        name, kind = event.name, event.cat
        if name == "[memory]" or name == "[OutOfMemory]":
            self._take_memory(event, failed=name == "[OutOfMemory]")
            return
        place = _KINDS.get(kind) if type(kind) is str else None
        if place is None:
            return
        if type(name) is not str:
            name = plain_text(name)
        if place == _RUNTIME and name not in MEMORY_CALLS:
            return
        start, duration = event.ts, event.dur
        if type(start) is not float or type(duration) is not float or not -_LATEST < start + duration < _LATEST:
            start, duration = _number(start), _number(duration)
            if start is None or duration is None:
                return
        end = start + duration if duration > 0 else start
        sequence, forward = -1, 0
        if place == _OPERATOR:
            args = event.args
            if args is not None and args.sequence is not None:
                sequence, forward = _whole(args.sequence, -1), _whole(args.forward_thread, 0)
            if name.startswith(("ProfilerStep#", "Optimizer.")):
                # Until 1.12 annotations had the category of operators.
                place = _ANNOTATION
        elif place == _PYTHON and duration == 0 and start != int(start):
            # Still open when the profiler stopped; among whole microseconds it is a short one.
            end = float("inf")
        code = self.names.get(name)
        if code is None:
            code = self.names[name] = len(self.names)
        thread = self.threads.get(event.tid) if type(event.tid) in _PLAIN else None
        if thread is None:
            thread = self._thread(event.tid)
        self.spans[place].rows.append((code, thread, start, end, sequence, forward))

    def _thread(self, tid: Any) -> int:
        key = tid if type(tid) in _PLAIN else plain_text(tid)
        return self.threads.setdefault(key, len(self.threads))

    def _take_memory(self, event: _Event, *, failed: bool) -> None:
        args, time = event.args, _number(event.ts)
        if args is None or time is None or args.bytes is None:
            self.repaired.count("memory_events_without_figures")
            return
        self.memory.append(
            (
                time,
                self._thread(event.tid),
                _whole(args.device_type, 0),
                _whole(args.device, -1, -1, 2**15),
                _whole(args.bytes, 0),
                _whole(args.address, 0, high=2**64) & (2**64 - 1),
                _total(args.allocated),
                _total(args.reserved),
                failed,
                _whole(args.order, 0),
            )
        )

    def _finish(self, count: int) -> Trace:
        names = [plain_text(name) for name in self.names]
        memory = _memory_events(self.memory)
        base = _whole(self.top.base, None)
        distributed = _decoded(self.top.distributed, _Distributed) or _Distributed()
        devices = _decoded(self.top.devices, list[_Device]) or []
        operators, python, annotations, runtime = (one.finish(names) for one in self.spans)
        starts = [
            float(times[0])
            for times in (operators.start, python.start, annotations.start, runtime.start, memory.time)
            if len(times)
        ]
        # Large times are absolute already, whatever base is given.
        absolute = not starts or max(starts) > 1e15
        return Trace(
            info=self.info,
            events=count,
            base_us=0 if base is None or absolute else base // 1000,
            memory=memory,
            operators=operators,
            python=python,
            annotations=annotations,
            runtime=runtime,
            devices=tuple(
                DeviceProperties(_whole(one.id, 0), plain_text(one.name), _whole(one.total, 0) or None)
                for one in devices
            ),
            rank=_whole(distributed.rank, None),
            world_size=_whole(distributed.world_size, None),
            repairs=dict(self.repaired.counts),
        )


_PLAIN = {int, str}
# Microseconds of some thousand years.
_LATEST = 1e17


def _lenient(mended: Any) -> _Event | None:
    """Read an event that was mended; None where nothing could be."""
    if mended is None:
        return None
    for event in (mended, {key: value for key, value in mended.items() if key != "args"}):
        try:
            return msgspec.convert(event, _Event, strict=False)
        except msgspec.ValidationError:
            continue
    return None


def _number(value: Any) -> float | None:
    """Read a time: Ascend writes them as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _LATEST else None


def _whole(value: Any, default: Any, low: int = -(2**63), high: int = 2**63) -> Any:
    """Read a whole number from ``low`` to below ``high``, also one written as text."""
    try:
        number = value if type(value) is int else int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if low <= number < high else default


def _total(value: Any) -> int:
    """Read a total; the CPU's is counted without a sign where more was freed than allocated."""
    number: int = _whole(value, -1, high=2**64)
    return number - 2**64 if number >= 2**63 else number


def _memory_events(rows: list[tuple[Any, ...]]) -> MemoryEvents:
    """Sort by time; file order is by thread. ``Ev Idx`` orders what has the same time."""
    order = sorted(range(len(rows)), key=lambda number: (rows[number][0], rows[number][9]))
    columns = list(zip(*(rows[number] for number in order), strict=True)) if rows else [()] * 10
    integers = [np.array(columns[number], dtype=np.int64) for number in (1, 2, 3, 4, 6, 7)]
    return MemoryEvents(
        time=np.array(columns[0], dtype=np.float64),
        thread=integers[0],
        device_type=integers[1],
        device=integers[2],
        bytes=integers[3],
        address=np.array(columns[5], dtype=np.uint64),
        allocated=integers[4],
        reserved=integers[5],
        failed=np.array(columns[8], dtype=bool),
    )
