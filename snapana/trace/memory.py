"""From a trace's memory events to the model that all analyses read.

Sizes are those of blocks, and the totals that each event carries are the allocator's own: nothing is replayed.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.replay import NEVER, Coverage, DeviceReplay, Replay
from snapana.allocator.settings import AllocatorSettings
from snapana.snapshot.model import ACTION_CODE, ACTIONS, Snapshot
from snapana.snapshot.stacks import StackInterner, Stacks
from snapana.trace.model import IntArray, MemoryEvents, Trace
from snapana.trace.nesting import NONE, Nesting, chains_of

CPU = 0
CPU_DEVICE = -1
# Operators that only get memory for another one.
_ALLOCATES = re.compile(
    r"^aten::(?:empty|empty_strided|empty_like|new_empty|new_empty_strided|new_zeros|zeros|zeros_like|ones|ones_like|"
    r"resize_|resize_as_|_efficientzerotensor|_to_copy|to|copy_|clone|contiguous|full|full_like|new_full)$"
)
_PYTHON_LINE = re.compile(r"^(.*)\((\d+)\): (.*)$")
_ENGINE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Attribution:
    """Who asked, for each memory event of a device.

    Attributes:
        operator: code of the name of the innermost operator that is not only an allocation, -1 for none.
        module: code of the innermost ``nn.Module``'s name, -1 likewise.
        function: code of the innermost Python function, -1 likewise.
        annotation: code of the innermost annotation, -1 likewise.
        forward: code of the forward operator whose backward asked, -1 where it is no backward.
        names: by code.

    """

    operator: IntArray
    module: IntArray
    function: IntArray
    annotation: IntArray
    forward: IntArray
    names: list[str]

    def of(self, rows: IntArray) -> Attribution:
        """Give that of some events."""
        return Attribution(
            self.operator[rows],
            self.module[rows],
            self.function[rows],
            self.annotation[rows],
            self.forward[rows],
            self.names,
        )


@dataclass(frozen=True)
class TraceMemory:
    """A trace as the analyses read it.

    Attributes:
        snapshot: the model, with its replay filled in; no segments are known.
        attribution: by device.
        device_type: ``c10::DeviceType`` by device.
        lost_bytes: by device, bytes by which totals differ from the sum of the events: events that were lost.

    """

    snapshot: Snapshot
    attribution: dict[int, Attribution]
    device_type: dict[int, int]
    lost_bytes: dict[int, int]


def build_memory(trace: Trace) -> TraceMemory:
    """Turn the events of each device into lives and curves."""
    memory = trace.memory
    key = np.where(memory.device_type == CPU, CPU_DEVICE, memory.device)
    attributed, stack, stacks = _attribute(trace)
    replays, attribution, kinds, lost = {}, {}, {}, {}
    events = []
    for device in np.unique(key).tolist():
        own = np.flatnonzero(key == device)
        kinds[device] = int(memory.device_type[own[0]])
        frame = _events(trace, own, stack, device)
        replays[device], lost[device] = _replay(memory, own, frame, device)
        attribution[device] = attributed.of(own)
        events.append(frame.assign(device=np.int16(device)))
    snapshot = Snapshot(
        info=trace.info,
        generation="torch.profiler",
        settings=AllocatorSettings(),
        has_settings=False,
        events=_joined(events),
        segments=pd.DataFrame({name: pd.Series(dtype="int64") for name in _SEGMENT_COLUMNS}).astype(
            {"expandable": bool}
        ),
        blocks=pd.DataFrame(),
        annotations=_annotations(trace),
        stacks=stacks,
    )
    # The model computes its replay on first use; here it is known already.
    snapshot.__dict__["replay"] = Replay(replays)
    return TraceMemory(snapshot, attribution, kinds, lost)


_SEGMENT_COLUMNS = ("device", "address", "size", "stream", "pool", "small", "expandable", "stack")


# ---- who asked


def _attribute(trace: Trace) -> tuple[Attribution, IntArray, Stacks]:
    """Find operator, module, function, annotation and stack of each memory event."""
    memory = trace.memory
    operators, python, annotations = (Nesting(one) for one in (trace.operators, trace.python, trace.annotations))
    names = trace.operators.names
    at_operator = operators.around(memory.thread, memory.time)
    at_python = python.around(memory.thread, memory.time)
    at_annotation = annotations.around(memory.thread, memory.time)
    forward_at = _forward_of(trace, operators, at_operator)
    # A backward operator has no Python of its own: that of its forward operator says which line it belongs to.
    forward_python = python.around(
        np.append(trace.operators.thread, NONE)[forward_at],
        np.append(trace.operators.start, -1.0)[forward_at],
    )
    own = chains_of(operators, at_operator)
    around = chains_of(python, at_python)
    behind = np.where(at_python >= 0, NONE, chains_of(python, forward_python))
    table = pd.DataFrame({"own": own, "around": around, "behind": behind})
    groups = table.groupby(["own", "around", "behind"], sort=False).ngroup().to_numpy()
    _, first = np.unique(groups, return_index=True)
    interner = StackInterner()
    found = [
        _frames(names, operators, python, int(own[row]), int(around[row]), int(behind[row])) for row in first.tolist()
    ]
    ids = interner.add_many([frames for frames, _ in found]) if found else np.zeros(0, dtype=np.int64)
    stacks = interner.finish({})
    inner = np.array([codes for _, codes in found], dtype=np.int64).reshape(len(found), 3)
    operator, module, function = (inner[groups, column] for column in range(3))
    annotation = np.append(trace.annotations.name, NONE)[at_annotation]
    forward = np.append(trace.operators.name, NONE)[forward_at]
    found_all = Attribution(operator, module, function, annotation, forward, names)
    return found_all, ids[groups], stacks


def _forward_of(trace: Trace, nesting: Nesting, at: IntArray) -> IntArray:
    """Find the forward operator of each backward one: the last with its sequence number, or what is around it."""
    spans = trace.operators
    found = np.full(len(at), NONE, dtype=np.int64)
    if not len(spans):
        return found
    is_forward = (spans.sequence >= 0) & (spans.forward_thread == 0)
    rows = np.flatnonzero(is_forward)
    order = rows[np.lexsort((spans.start[rows], spans.sequence[rows]))]
    sequence = spans.sequence[order]
    # Go up from the memory event's operator to one that belongs to the backward pass.
    left = np.flatnonzero(at >= 0)
    current = at.copy()
    while len(left):
        backward = (spans.sequence[current[left]] >= 0) & (spans.forward_thread[current[left]] != 0)
        hits = left[backward]
        if len(order) and len(hits):
            # Operators that make no node carry the number of the next one that does: the last one made it.
            place = np.searchsorted(sequence, spans.sequence[current[hits]], side="right") - 1
            inside = place >= 0
            same = np.zeros(len(hits), dtype=bool)
            same[inside] = sequence[place[inside]] == spans.sequence[current[hits[inside]]]
            found[hits[same]] = _outermost(order[place[same]], nesting.parent, spans.sequence)
        left = left[~backward]
        current[left] = nesting.parent[current[left]]
        left = left[current[left] >= 0]
    return found


def _outermost(at: IntArray, parent: IntArray, sequence: IntArray) -> IntArray:
    """Go up while the operator around has the same number."""
    at = at.copy()
    left = np.arange(len(at))
    while len(left):
        above = parent[at[left]]
        left = left[(above >= 0) & (sequence[above] == sequence[at[left]])]
        at[left] = parent[at[left]]
    return at


def _frames(
    names: list[str], operators: Nesting, python: Nesting, own: int, around: int, behind: int
) -> tuple[list[dict[str, object]], tuple[int, int, int]]:
    """Write the stack of an event as frames, innermost first; give operator, module and function beside it."""
    operator = module = function = NONE
    frames: list[dict[str, object]] = []
    codes = operators.names(own)
    asking = [code for code in codes if not _ALLOCATES.match(names[code])]
    # Where all of them only allocate, as zeros_like does, the outermost is what was called.
    shown = asking or codes[-1:]
    operator = (shown or [NONE])[0]
    for code in shown:
        name = names[code]
        if name.startswith(_ENGINE):
            # Its node follows under its own name where it ran one.
            name = f"{name.removeprefix(_ENGINE)}::apply()"
        elif re.search(r"Backward\d*$", name):
            name = f"{name}::apply()"
        frames.append({"name": name, "filename": "", "line": 0})
    for code in python.names(around if around >= 0 else behind):
        name = names[code]
        if name.startswith("nn.Module: "):
            module = code if module == NONE else module
            continue
        line = _PYTHON_LINE.match(name)
        if line is None:
            continue
        function = code if function == NONE else function
        frames.append({"name": line.group(3), "filename": _whole_path(line.group(1)), "line": int(line.group(2))})
    return frames, (operator, module, function)


# Packages that training scripts use: the profiler cuts off the folders of sys.path, and theirs look like the user's.
PACKAGES = {
    *("torch", "torchgen", "functorch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "torchao", "triton"),
    *(
        "transformers",
        "accelerate",
        "peft",
        "diffusers",
        "datasets",
        "tokenizers",
        "trl",
        "bitsandbytes",
        "safetensors",
    ),
    *("lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "apex", "fairscale", "xformers", "flash_attn"),
    *("megatron", "colossalai", "timm", "numpy", "scipy", "pandas", "sklearn", "PIL", "matplotlib", "tqdm", "einops"),
    *(
        "ignite",
        "fastai",
        "monai",
        "detectron2",
        "mmcv",
        "mmengine",
        "vllm",
        "liger_kernel",
        "torch_npu",
        "habana_frameworks",
    ),
}


def _whole_path(path: str) -> str:
    """Give a path that the profiler has shortened its beginning back, so that it is known whose code it is."""
    plain = path.replace("\\", "/")
    if plain.startswith(("/", "<", "~")) or plain[1:2] == ":":
        return path
    top = plain.split("/", 1)[0].removesuffix(".py")
    if "/" in plain and top in PACKAGES:
        return f"/site-packages/{plain}"
    return f"/lib/python3.0/{plain}" if top in sys.stdlib_module_names else path


# ---- events, lives, curves


def _events(trace: Trace, own: IntArray, stack: IntArray, device: int) -> pd.DataFrame:
    memory = trace.memory
    count = len(own)
    action = np.where(memory.bytes[own] < 0, ACTION_CODE["free"], ACTION_CODE["alloc"])
    action[memory.failed[own]] = ACTION_CODE["oom"]
    empty = pd.Categorical.from_codes(np.zeros(count, dtype=np.int8), categories=pd.Index([""], dtype=object))
    return pd.DataFrame(
        {
            "device": np.full(count, device, dtype=np.int16),
            "index": np.arange(count, dtype=np.int64),
            "action": pd.Categorical.from_codes(action, categories=pd.Index(list(ACTIONS), dtype=object)),
            "addr": memory.address[own],
            "size": np.abs(memory.bytes[own]),
            "stream": np.zeros(count, dtype=np.uint64),
            "pool": np.full(count, -1, dtype=np.int64),
            "time_us": (trace.base_us + np.floor(memory.time[own])).astype(np.int64),
            "stack": stack[own],
            "context": np.full(count, -1, dtype=np.int64),
            "compile_context": empty,
            "user_metadata": empty,
            "device_free": np.full(count, -1, dtype=np.int64),
        }
    )


def _replay(memory: MemoryEvents, own: IntArray, events: pd.DataFrame, device: int) -> tuple[DeviceReplay, int]:
    size = np.where(memory.failed[own], 0, memory.bytes[own])
    totals = memory.allocated[own]
    # The CPU's total counts from the start of the profiler, and old writers give none.
    known = bool(len(totals)) and bool((totals >= 0).all()) and device != CPU_DEVICE
    before = int(totals[0] - size[0]) if known else 0
    summed = before + np.cumsum(size)
    if not known:
        before = max(0, -int(summed.min(initial=0)))
        summed = summed + before
    allocated = totals if known else summed
    lost = int(np.abs(np.diff(allocated) - size[1:]).sum()) if len(size) else 0
    lives = _lives(events, memory.address[own], size, before)
    unmatched = int(((lives["alloc"] == NEVER) & (lives["free_requested"] >= 0)).sum())
    reserved = memory.reserved[own]
    unknown = np.full(len(own) + 1, -1, dtype=np.int64)
    curves = pd.DataFrame(
        {
            "event": np.arange(-1, len(own)),
            "allocated": np.concatenate([[before], allocated]),
            "active": np.concatenate([[before], allocated]),
            "requested": unknown,
            "reserved": np.concatenate([reserved[:1], reserved]) if device != CPU_DEVICE else unknown,
        }
    )
    times = events["time_us"].to_numpy()
    mismatches = {"totals_that_differ": int((np.diff(allocated) != size[1:]).sum())} if lost else {}
    coverage = Coverage(
        events=len(own),
        complete=bool(len(own)) and before == 0 and not lost and not unmatched,
        start_us=int(times[0]) if len(times) else None,
        end_us=int(times[-1]) if len(times) else None,
        preexisting_bytes=before,
        preexisting_blocks=int((lives["alloc"] == NEVER).sum()),
        preexisting_reserved_bytes=0,
        guessed_blocks=0,
        unmatched_frees=unmatched,
        mismatches=mismatches,
    )
    segments = pd.DataFrame({name: pd.Series(dtype="int64") for name in ("address", "size", "born", "died")})
    return DeviceReplay(device, events, lives, curves, segments, coverage), lost


def _lives(events: pd.DataFrame, address: npt.NDArray[np.uint64], size: IntArray, before: int) -> pd.DataFrame:
    """Pair allocations and frees by address; what was freed without one existed before, and so did the rest of it."""
    chosen = np.flatnonzero(size != 0)
    order = chosen[np.argsort(address[chosen], kind="stable")]
    addr, is_alloc = address[order], size[order] > 0
    starts = np.ones(len(order), dtype=bool)
    if len(order) > 1:
        starts[1:] = (addr[1:] != addr[:-1]) | is_alloc[1:] | ~is_alloc[:-1]
    if not address.any():
        order, starts = _paired_by_size(size, chosen)
        addr, is_alloc = address[order], size[order] > 0
    life = np.cumsum(starts) - 1
    count = int(life[-1]) + 1 if len(life) else 0
    alloc, freed = (np.full(count, NEVER, dtype=np.int64) for _ in range(2))
    alloc[life[is_alloc]] = order[is_alloc]
    freed[life[~is_alloc]] = order[~is_alloc]
    freed = _close_reused(life, addr, starts, alloc, freed)
    row = np.where(alloc >= 0, alloc, freed)
    stack = events["stack"].to_numpy()
    occupied = np.abs(size)[row] if count else np.zeros(0, dtype=np.int64)
    lives = pd.DataFrame(
        {
            "addr": address[row] if count else address[:0],
            "requested": occupied,
            "size": occupied,
            "alloc": alloc,
            "free_requested": freed,
            "free_completed": freed,
            "stack": np.where(alloc >= 0, stack[row] if count else -1, -1),
            "stream": np.zeros(count, dtype=np.uint64),
            "pool": np.zeros(count, dtype=np.int64),
            "small": np.zeros(count, dtype=bool),
            "alive": freed == NEVER,
            "guessed": np.zeros(count, dtype=bool),
        }
    )
    rest = before - int(occupied[alloc == NEVER].sum())
    if rest > 0:
        # What existed before and was not freed within the trace: one row, since nothing tells its blocks apart.
        whole = lives.iloc[:0].copy()
        whole.loc[0] = [0, rest, rest, NEVER, NEVER, NEVER, -1, 0, 0, False, True, False]
        lives = pd.concat([lives, whole.astype(lives.dtypes)], ignore_index=True)
    ordering = np.lexsort((lives["addr"].to_numpy(), lives["alloc"].to_numpy()))
    return lives.iloc[ordering].reset_index(drop=True)


def _paired_by_size(size: IntArray, chosen: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Pair without addresses: a free ends the last allocation of its size; each free follows its allocation."""
    alive: dict[int, list[int]] = {}
    partner: dict[int, int] = {}
    paired: set[int] = set()
    for row, bytes_ in zip(chosen.tolist(), size[chosen].tolist(), strict=True):
        if bytes_ > 0:
            alive.setdefault(bytes_, []).append(row)
        elif alive.get(-bytes_):
            partner[alive[-bytes_].pop()] = row
            paired.add(row)
    order, starts = [], []
    for row in chosen.tolist():
        if row in paired:
            continue
        order.append(row)
        starts.append(True)
        if row in partner:
            order.append(partner[row])
            starts.append(False)
    return np.array(order, dtype=np.int64), np.array(starts, dtype=bool)


def _close_reused(
    life: IntArray, addr: npt.NDArray[np.uint64], starts: npt.NDArray[np.bool_], alloc: IntArray, freed: IntArray
) -> IntArray:
    """Two allocations at one address without a free between: the free was lost, the second ends the first."""
    if not len(alloc):
        return freed
    first = addr[starts]
    again = np.flatnonzero((first[1:] == first[:-1]) & (freed[:-1] == NEVER) & (alloc[1:] >= 0) & (first[1:] != 0))
    freed = freed.copy()
    freed[again] = alloc[again + 1]
    return freed


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    if frames:
        return pd.concat(frames, ignore_index=True)
    columns = ("index", "size", "pool", "time_us", "stack", "context", "device_free", "addr", "stream", "device")
    table = pd.DataFrame({name: pd.Series(dtype="int64") for name in columns})
    return table.assign(action=pd.Categorical([], categories=list(ACTIONS)))


def _annotations(trace: Trace) -> pd.DataFrame:
    spans, base = trace.annotations, trace.base_us
    ended = np.isfinite(spans.end)
    return pd.DataFrame(
        {
            "name": pd.Series([spans.names[code] for code in spans.name.tolist()], dtype=object),
            "device": np.zeros(len(spans), dtype=np.int64),
            "start_us": (base + np.floor(spans.start)).astype(np.int64),
            "end_us": np.where(ended, base + np.floor(np.where(ended, spans.end, 0)), -1).astype(np.int64),
        }
    )
