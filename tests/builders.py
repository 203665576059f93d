"""Small snapshots, made by running a history through the simulated allocator: honest by construction."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from snapana.allocator.rounding import Rounding
from snapana.allocator.settings import AllocatorSettings
from snapana.allocator.simulate import SimulatedEvent, SimulatedOutOfMemoryError, Simulator
from snapana.snapshot.model import InputInfo, Snapshot
from snapana.snapshot.normalise import normalise

Frame = dict[str, Any]


class History:
    """What a program does to one device, recorded as PyTorch records it.

    Args:
        settings: allocator settings.
        limit: bytes that may be reserved.
        recording: whether history is on from the start.
        pad: bytes added to each request (torch_npu).

    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        limit: int | None = None,
        recording: bool = True,
        pad: int = 0,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        rounding = Rounding(self.settings.roundup_power2_divisions, pad)
        self.sim = Simulator(self.settings, rounding=rounding, limit=limit, record=self._record)
        self.recording = recording
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        # Event to what the allocator said after it: allocated, active, requested, reserved.
        self.truth: dict[int, tuple[int, int, int, int]] = {}
        self.time_us = 1_700_000_000_000_000
        self._frames: dict[str, Frame] = {}
        self._context: list[Frame] | None = []
        self._stack_of: dict[int, list[Frame]] = {}

    # ---- the program

    def alloc(self, size: int, site: str | None = "work", *, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        """Allocate at a line of its own for each ``site`` (None: without a stack); give the address."""
        self._context = self._capture(site)
        addr = self.sim.malloc(size, stream, pool)
        # Contexts are captured only while recording: older blocks have none.
        self._stack_of[addr] = (self._context or []) if self.recording else []
        self._note()
        return addr

    def free(self, addr: int, site: str = "free") -> None:
        """Free at once."""
        self._context = self._capture(site)
        self.sim.free(addr)
        self._stack_of.pop(addr, None)
        self._note()

    def free_later(self, addr: int, site: str = "free") -> None:
        """Free while another stream still uses the block: see ``complete``."""
        self._context = self._capture(site)
        self.sim.free_requested(addr)
        self._note()

    def complete(self, addr: int) -> None:
        """Let the other stream be done with a block."""
        self._context = self._capture("later")
        self.sim.free_completed(addr)
        self._stack_of.pop(addr, None)
        self._note()

    def empty_cache(self, site: str = "clean") -> None:
        """Call ``torch.cuda.empty_cache()`` from a line of the program."""
        inner = self._frame("empty_cache", "/venv/lib/python3.12/site-packages/torch/cuda/memory.py", 222)
        self._context = [inner, *(self._capture(site) or [])]
        self.sim.empty_cache()
        self._note()

    def out_of_memory(
        self,
        size: int,
        site: str | None = "work",
        *,
        device_free: int = 0,
        pool: tuple[int, int] = (0, 0),
    ) -> bool:
        """Allocate what may fail; give whether it did."""
        try:
            self.alloc(size, site, pool=pool)
        except SimulatedOutOfMemoryError:
            if self.recording:
                self.events[-1]["device_free"] = device_free
            return True
        return False

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """Mark what happens inside with ``record_function``."""
        self._annotate(name, "START")
        yield
        self._annotate(name, "END")

    def step(self, number: int = 0) -> None:
        """Mark the end of an optimizer step."""
        with self.annotate("Optimizer.step#SGD.step"):
            pass

    # ---- the recorder

    def _note(self) -> None:
        """Keep the allocator's figures: they hold once an operation is through."""
        sim = self.sim
        self.truth[len(self.events) - 1] = (sim.allocated, sim.active, sim.requested, sim.reserved)

    def _frame(self, name: str, filename: str, line: int) -> Frame:
        return self._frames.setdefault(f"{filename}:{line}:{name}", {"name": name, "filename": filename, "line": line})

    def _capture(self, site: str | None) -> list[Frame] | None:
        if site is None:
            return []
        line = 10 + sum(map(ord, site)) % 1000
        return [
            self._frame("forward", "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125),
            self._frame(site, "/home/user/train.py", line),
            self._frame("<module>", "/home/user/train.py", 1),
        ]

    def _annotate(self, name: str, stage: str) -> None:
        self.time_us += 10
        if self.recording:
            self.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": self.time_us})

    def _record(self, event: SimulatedEvent) -> None:
        if not self.recording:
            return
        self.time_us += 7
        place = "device_free" if event.action == "oom" else "addr"
        self.events.append(
            {
                "action": event.action,
                place: event.addr,
                "size": event.size,
                "stream": event.stream,
                "time_us": self.time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": self._context,
            }
        )

    def document(self, *, max_entries: int | None = None) -> dict[str, Any]:
        """Give the dict that ``torch.cuda.memory._snapshot()`` would: PyTorch 2.10, one device."""
        trace = self.events if max_entries is None else self.events[-max_entries:]
        return {
            "segments": [self._segment(run) for run in self.sim.segments()],
            "device_traces": [list(trace)],
            "allocator_settings": self._settings(),
            "external_annotations": list(self.annotations),
        }

    def snapshot(self, *, max_entries: int | None = None) -> Snapshot:
        """Give the model of ``document``."""
        return model(self.document(max_entries=max_entries))

    def _segment(self, run: list[Any]) -> dict[str, Any]:
        first = run[0]
        blocks = [self._block(block) for block in run]
        return {
            "device": 0,
            "address": first.addr,
            "total_size": sum(block.size for block in run),
            "allocated_size": sum(block.size for block in run if block.allocated),
            "active_size": sum(block.size for block in run if not block.is_free),
            "requested_size": sum(block.requested for block in run if not block.is_free),
            "stream": first.stream,
            "segment_type": "small" if first.pool.small else "large",
            "segment_pool_id": first.pool.id,
            "is_expandable": first.expandable,
            "frames": [],
            "blocks": blocks,
        }

    def _block(self, block: Any) -> dict[str, Any]:
        state = "active_allocated" if block.allocated else "active_pending_free" if block.pending else "inactive"
        return {
            "address": block.addr,
            "size": block.size,
            "requested_size": block.requested,
            "state": state,
            "frames": [] if block.is_free else self._stack_of.get(block.addr, []),
        }

    def _settings(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "PYTORCH_CUDA_ALLOC_CONF": settings.conf,
            "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {
                str(2**slot): value for slot, value in enumerate(settings.roundup_power2_divisions)
            },
        }


def model(document: object, name: str = "built.pickle") -> Snapshot:
    """Normalise a document that never was a file."""
    return normalise(document, InputInfo(name, "snapshot"))


# ---- other generations


def generation(document: dict[str, Any], name: str) -> Any:
    """Rewrite a document of PyTorch 2.10 as another generation would have written it."""
    document = copy.deepcopy(document)
    return _GENERATIONS[name](document)


def _entries(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for trace in document["device_traces"]:
        yield from trace


def _drop(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    for entry in _entries(document):
        for key in keys:
            entry.pop(key, None)
    return document


def _torch_2_8(document: dict[str, Any]) -> dict[str, Any]:
    document["allocator_settings"].pop("graph_capture_record_stream_reuse")
    return _drop(document, "user_metadata")


def _torch_2_5(document: dict[str, Any]) -> dict[str, Any]:
    return _drop(_torch_2_8(document), "compile_context")


def _torch_2_4(document: dict[str, Any]) -> dict[str, Any]:
    document = _torch_2_5(document)
    marks = [
        {
            "action": "user_defined",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": mark["time_us"],
            "frames": [{"name": mark["stage"], "filename": mark["name"], "line": 0}],
        }
        for mark in document.pop("external_annotations")
    ]
    trace = document["device_traces"][0]
    document["device_traces"] = [sorted([*trace, *marks], key=lambda entry: entry["time_us"])]
    return document


def _torch_2_2(document: dict[str, Any]) -> dict[str, Any]:
    document = _torch_2_5(document)
    document.pop("external_annotations")
    document.pop("allocator_settings")
    return document


def _torch_2_1(document: dict[str, Any]) -> dict[str, Any]:
    return _drop(_torch_2_2(document), "time_us")


def _torch_2_0(document: dict[str, Any]) -> dict[str, Any]:
    document = _torch_2_1(document)
    for segment in document["segments"]:
        for key in ("is_expandable", "segment_pool_id", "frames"):
            segment.pop(key)
        for block in segment["blocks"]:
            frames, addr = block.pop("frames"), block.pop("address")
            if block["state"] != "inactive":
                block["history"] = [{"addr": addr, "real_size": block["requested_size"], "frames": frames}]
            block.pop("requested_size")
    return document


def _torch_2_12(document: dict[str, Any]) -> dict[str, Any]:
    for entry in _entries(document):
        entry["pool_id"] = (0, 0)
    return document


def _torch_2_14(document: dict[str, Any]) -> dict[str, Any]:
    document = _torch_2_12(document)
    document["host_segments"] = [{"address": 64, "total_size": 4096, "state": "active_allocated", "frames": []}]
    document["host_traces"] = []
    trace = document["device_traces"][0]
    live = next(entry for entry in trace if entry["action"] == "alloc")
    trace.append({**live, "action": "annotate", "user_metadata": "weights", "time_us": trace[-1]["time_us"] + 1})
    return document


def _npu(document: dict[str, Any]) -> dict[str, Any]:
    document = _drop(document, "time_us", "compile_context", "user_metadata")
    document.pop("external_annotations")
    document.pop("allocator_settings")
    return document


def _moved(document: dict[str, Any], offset: int) -> dict[str, Any]:
    for entry in _entries(document):
        if "addr" in entry:
            entry["addr"] += offset
    for segment in document["segments"]:
        segment["address"] += offset
        for block in segment["blocks"]:
            block["address"] += offset
    return document


def _xpu(document: dict[str, Any]) -> dict[str, Any]:
    """Intel's addresses lie above 2**63."""
    document = _drop(_moved(document, 2**63), "compile_context", "user_metadata")
    document.pop("external_annotations")
    document["allocator_settings"] = {"PYTORCH_ALLOC_CONF": "", "expandable_segments": False}
    return document


def _cpp_writer(document: dict[str, Any]) -> dict[str, Any]:
    """The C++ writer's addresses are signed: high ones are negative."""
    return _moved(document, -(2**62))


def _unknown_keys(document: dict[str, Any]) -> dict[str, Any]:
    document["from_the_future"] = {"a": 1}
    for entry in _entries(document):
        entry["lane"] = 3
    document["device_traces"][0].append(
        {**document["device_traces"][0][-1], "action": "teleport", "addr": 1, "size": 2}
    )
    for segment in document["segments"]:
        segment["colour"] = "blue"
        for block in segment["blocks"]:
            block["mood"] = None
    return document


_GENERATIONS = {
    "list": lambda document: document["segments"],
    "torch 2.0": _torch_2_0,
    "torch 2.1": _torch_2_1,
    "torch 2.2": _torch_2_2,
    "torch 2.4": _torch_2_4,
    "torch 2.5": _torch_2_5,
    "torch 2.8": _torch_2_8,
    "torch 2.10": lambda document: document,
    "torch 2.12": _torch_2_12,
    "torch 2.14": _torch_2_14,
    "npu": _npu,
    "xpu": _xpu,
    "c++": _cpp_writer,
    "unknown keys": _unknown_keys,
}
GENERATIONS = tuple(_GENERATIONS)


# ---- random histories

_SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(4097, 2**20),
    st.integers(2**20 + 1, 12 * 2**20),
    st.integers(12 * 2**20, 90 * 2**20),
)
_SETTINGS = st.sampled_from(
    [
        AllocatorSettings(),
        AllocatorSettings(conf="expandable_segments:True", expandable_segments=True),
        AllocatorSettings(conf="max_split_size_mb:24", max_split_size=24 * 2**20),
        AllocatorSettings(conf="roundup_power2_divisions:4", roundup_power2_divisions=(4,) * 16),
    ]
)


@st.composite
def histories(draw: st.DrawFn, *, most: int = 60, recording: bool = True) -> History:
    """Random honest traffic: sizes of both classes, three streams, a private pool, late frees, emptied caches."""
    history = History(draw(_SETTINGS), recording=recording)
    live: list[int] = []
    pending: list[int] = []
    for _ in range(draw(st.integers(1, most))):
        # Blocks are freed a little less often than made, so that the heap fills.
        what = draw(st.sampled_from("aaaaaafffflce"))
        if what == "a":
            pool = draw(st.sampled_from([(0, 0), (0, 0), (0, 0), (1, 0)]))
            site = draw(st.sampled_from(["embed", "attend", "mlp", None]))
            live.append(history.alloc(draw(_SIZES), site, stream=draw(st.sampled_from([0, 0, 7, 9])), pool=pool))
        elif what == "f" and live:
            history.free(live.pop(draw(st.integers(0, len(live) - 1))))
        elif what == "l" and live:
            pending.append(live.pop(draw(st.integers(0, len(live) - 1))))
            history.free_later(pending[-1])
        elif what == "c" and pending:
            history.complete(pending.pop(draw(st.integers(0, len(pending) - 1))))
        elif what == "e":
            history.empty_cache()
    return history
