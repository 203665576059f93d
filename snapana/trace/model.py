"""The model of one profiler trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from snapana.snapshot.model import InputInfo

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spans:
    """Ranges of one kind on the threads of the process, ordered by thread and start.

    Attributes:
        name: code of each one's name in ``names``.
        thread: code of its thread.
        start: microseconds since the trace's base.
        end: likewise; infinite where it did not end within the trace.
        sequence: autograd's sequence number, -1 if none.
        forward_thread: for backward operators that of the forward pass, 0 if none.
        names: by code.

    """

    name: IntArray
    thread: IntArray
    start: FloatArray
    end: FloatArray
    sequence: IntArray
    forward_thread: IntArray
    names: list[str]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class MemoryEvents:
    """``[memory]`` and ``[OutOfMemory]`` events, ordered by time.

    Attributes:
        time: microseconds since the trace's base.
        thread: code of the thread that called the allocator.
        device_type: ``c10::DeviceType``: 0 is the CPU, 1 CUDA, 6 HIP, 12 XPU, 20 a private one.
        device: ordinal, -1 for the CPU.
        bytes: of the block; negative for a free.
        address: 0 where the writer gave none.
        allocated: ``Total Allocated`` after it, -1 where not given.
        reserved: ``Total Reserved`` after it, -1 likewise.
        failed: whether it is an ``[OutOfMemory]``.

    """

    time: FloatArray
    thread: IntArray
    device_type: IntArray
    device: IntArray
    bytes: IntArray
    address: npt.NDArray[np.uint64]
    allocated: IntArray
    reserved: IntArray
    failed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True)
class DeviceProperties:
    """What the trace says of one card: ordinal, name and bytes (None if not given)."""

    device: int
    name: str
    total_memory: int | None


@dataclass(frozen=True)
class Trace:
    """One profiler trace; of its top-level metadata only what is named here is ever kept.

    Attributes:
        info: where it came from.
        events: entries of ``traceEvents``.
        base_us: microseconds since the Unix epoch that times are relative to.
        memory: events of the allocator.
        operators: ``cpu_op`` ranges.
        python: Python functions and modules, empty without ``with_stack``.
        annotations: ``record_function`` ranges.
        runtime: calls of the CUDA (HIP) runtime and driver that concern memory.
        devices: properties of the cards.
        rank: of a distributed job, None if not given.
        world_size: likewise.
        repairs: what had to be mended to read it, by kind, with counts.

    """

    info: InputInfo
    events: int
    base_us: int
    memory: MemoryEvents
    operators: Spans
    python: Spans
    annotations: Spans
    runtime: Spans
    devices: tuple[DeviceProperties, ...]
    rank: int | None
    world_size: int | None
    repairs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """What ``export_memory_timeline`` wrote: bytes by category over time, without any stack.

    Attributes:
        info: where it came from.
        time_us: microseconds since the Unix epoch, ascending.
        sizes: bytes of each of ``TIMELINE_CATEGORIES`` at each time: shape (times, categories).

    """

    info: InputInfo
    time_us: IntArray
    sizes: IntArray

    @property
    def total(self) -> IntArray:
        """Bytes of all categories at each time."""
        found: IntArray = self.sizes.sum(axis=1)
        return found


# Of torch/profiler/_memory_profiler.py, in the order of its indices.
TIMELINE_CATEGORIES = (
    "parameters",
    "optimizer",
    "inputs",
    "temporary",
    "activations",
    "gradients",
    "autograd_detail",
    "other",
)
