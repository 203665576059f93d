"""Record allocations that fail for reasons outside their own pool.

Run on a machine with a GPU: ``python out_of_memory.py FOLDER``. Each scenario is a process of its own; it writes the
observer's snapshot (or, where memory recovered, a later one) and what PyTorch said.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import torch

GIB = 1024**3
MIB = 1024**2


def blocks(total: int, each: int) -> list[torch.Tensor]:
    """Fill ``total`` bytes with tensors of ``each`` bytes."""
    return [torch.empty(each, dtype=torch.uint8, device="cuda") for _ in range(total // each)]


def limit(size: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(size / total)


def train_step(size: int) -> torch.Tensor:
    """Ask for one large activation."""
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def stranded_pool() -> object:
    """A MemPool keeps 1.5 GiB that nothing uses; the default pool needs 768 MiB of a limit of 3 GiB."""
    limit(3 * GIB)
    weights = blocks(1024 * MIB, 64 * MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        scratch = blocks(1536 * MIB, 256 * MIB)
    del scratch
    return weights, pool, train_step(768 * MIB)


def in_pool() -> object:
    """A MemPool needs 1,280 MiB; the default pool has 1 GiB of free segments, which are not released meanwhile."""
    limit(3 * GIB)
    weights = blocks(512 * MIB, 64 * MIB)
    scratch = blocks(1024 * MIB, 256 * MIB)
    del scratch
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        own = blocks(512 * MIB, 256 * MIB)
        return weights, own, train_step(1280 * MIB)


def in_pool_holes() -> object:
    """A MemPool needs 768 MiB; the default pool keeps its holes, each pinned by a small tensor."""
    limit(3 * GIB)
    kept = []
    large = [train_step(200 * MIB) for _ in range(8)]
    large.clear()
    for _ in range(8):
        kept.append(train_step(12 * MIB))
        large.append(train_step(180 * MIB))
    large.clear()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        own = blocks(1024 * MIB, 256 * MIB)
        return kept, own, train_step(768 * MIB)


def graph_pool() -> object:
    """A CUDA graph keeps 1 GiB that its replays use between its tensors; the default pool needs 1,280 MiB."""
    limit(3 * GIB)
    weights = blocks(512 * MIB, 64 * MIB)
    static = torch.zeros(256 * MIB, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = static
        for _ in range(6):
            out = out + 1
    graph.replay()
    return weights, graph, out, train_step(1536 * MIB)


def other_stream() -> object:
    """A side stream's cache is kept by a small tensor in each segment."""
    limit(3 * GIB)
    weights = blocks(1024 * MIB, 64 * MIB)
    kept = []
    with torch.cuda.stream(torch.cuda.Stream()):
        large = [train_step(200 * MIB) for _ in range(7)]
        large.clear()
        for _ in range(7):
            kept.append(train_step(12 * MIB))
            large.append(train_step(180 * MIB))
        large.clear()
    torch.cuda.synchronize()
    return weights, kept, train_step(768 * MIB)


def other_process() -> object:
    """Another process holds most of the card."""
    total = torch.cuda.get_device_properties(0).total_memory
    hold = f"import torch, sys; x = torch.empty({total * 7 // 10}, dtype=torch.uint8, device='cuda')\n"
    hold += "print(1, flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        weights = blocks(8 * GIB, GIB)
        return weights, train_step(total * 4 // 10)
    finally:
        holder.kill()


def outside_allocator() -> object:
    """This process takes most of the card past PyTorch, as a library would."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.init()
    weights = blocks(8 * GIB, GIB)
    runtime = ctypes.CDLL("libcudart.so.13") if not hasattr(torch.cuda, "cudart") else None
    pointer = ctypes.c_void_p()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total * 7 // 10)) == 0
    return weights, runtime, train_step(total * 4 // 10)


def capacity() -> object:
    """Live tensors fill the card."""
    total = torch.cuda.get_device_properties(0).total_memory
    weights = blocks(total * 8 // 10, GIB)
    return weights, train_step(total * 4 // 10)


def retried() -> object:
    """Two failures that the program survives with a smaller batch, and a retry that succeeded within PyTorch."""
    limit(3 * GIB)
    weights = blocks(1024 * MIB, 64 * MIB)
    del weights
    for size in (2800 * MIB, 3500 * MIB, 3300 * MIB, 1024 * MIB):
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            train_step(size)
    torch.cuda.memory._dump_snapshot(str(FOLDER / "snapshot.pickle"))
    return None


SCENARIOS = {
    one.__name__: one
    for one in (
        stranded_pool,
        in_pool,
        in_pool_holes,
        graph_pool,
        other_stream,
        other_process,
        outside_allocator,
        capacity,
        retried,
    )
}
FOLDER = Path(sys.argv[1])


def run(name: str) -> None:
    truth: dict[str, object] = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    truth["total_memory"] = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.memory._record_memory_history(max_entries=100_000)

    def observe(device: int, request: int, allowed: int, free: int) -> None:
        torch.cuda.memory._dump_snapshot(str(FOLDER / "oom_observer.pickle"))
        stats = torch.cuda.memory_stats()
        kinds = ("allocated", "active", "requested", "reserved", "inactive_split")
        truth["observer"] = [device, request, allowed, free]
        truth["at_oom"] = {kind: stats[f"{kind}_bytes.all.current"] for kind in kinds}
        truth["at_oom"]["max_allocated"] = stats["allocated_bytes.all.peak"]
        truth["at_oom"]["max_reserved"] = stats["reserved_bytes.all.peak"]

    torch._C._cuda_attach_out_of_memory_observer(observe)
    try:
        kept = SCENARIOS[name]()
    except torch.cuda.OutOfMemoryError as error:
        truth["oom_message"] = str(error)
        kept = None
    stats = torch.cuda.memory_stats()
    truth["retries"], truth["ooms"] = stats["num_alloc_retries"], stats["num_ooms"]
    (FOLDER / "truth.json").write_text(json.dumps(truth, indent=1))
    del kept


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(sys.argv[2])
    else:
        for name in SCENARIOS:
            folder = FOLDER / name
            folder.mkdir(parents=True, exist_ok=True)
            done = subprocess.run([sys.executable, __file__, str(folder), name])
            print(name, done.returncode, (folder / "truth.json").exists())
