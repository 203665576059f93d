"""PyTorch's out-of-memory messages of all versions."""

from __future__ import annotations

import json

import pytest

from snapana.message import OomMessage, find_messages, tolerance
from snapana.units import format_bytes
from tests.conftest import SAMPLES

GIB, MIB = 2**30, 2**20

# Wordings of the versions, with figures of our own.
MESSAGES = {
    "1.0-1.3": (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 11.00 GiB total capacity; 9.50 GiB "
        "already allocated; 12.00 MiB free; 1.25 GiB cached)",
        OomMessage("CUDA", 1, 20 * MIB, 11 * GIB, 12 * MIB, None, (), None, 19 * GIB // 2, None, 5 * GIB // 4),
    ),
    "1.5-1.11": (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total capacity; 12.00 GiB "
        "already allocated; 512.00 MiB free; 14.00 GiB reserved in total by PyTorch)",
        OomMessage("CUDA", 0, 2 * GIB, 16 * GIB, 512 * MIB, None, (), None, 12 * GIB, None, 14 * GIB),
    ),
    "1.12-2.0, with a limit": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 8.00 GiB total capacity; "
        "3.50 GiB already allocated; 4.00 GiB free; 4.00 GiB allowed; 3.97 GiB reserved in total by PyTorch) If "
        "reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        OomMessage("CUDA", 0, 64 * MIB, 8 * GIB, 4 * GIB, None, (), 4 * GIB, 7 * GIB // 2, None, int(3.97 * GIB)),
    ),
    "2.1, misspelt, in a container": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 3 has a total capacty of "
        "24.00 GiB of which 256.00 MiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 2.00 "
        "GiB is reserved by PyTorch but unallocated.",
        OomMessage("CUDA", 3, GIB, 24 * GIB, 256 * MIB, None, (), None, 20 * GIB, None, 22 * GIB),
    ),
    "2.3, other processes": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 80.00 "
        "GiB of which 3.00 GiB is free. Process 41 has 10.00 GiB memory in use. Including non-PyTorch memory, this "
        "process has 66.00 GiB memory in use. Process 42 has 1.00 GiB memory in use. Of the allocated memory 60.00 GiB "
        "is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated.",
        OomMessage(
            "CUDA",
            0,
            4 * GIB,
            80 * GIB,
            3 * GIB,
            66 * GIB,
            ((41, 10 * GIB), (42, GIB)),
            None,
            60 * GIB,
            None,
            65 * GIB,
        ),
    ),
    "2.5 and later, private pools and a limit": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 "
        "GiB of which 70.00 GiB is free. Including non-PyTorch memory, this process has 9.00 GiB memory in use. 9.00 "
        "GiB allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private "
        "pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but unallocated.",
        OomMessage("CUDA", 0, GIB, 80 * GIB, 70 * GIB, 9 * GIB, (), 9 * GIB, 5 * GIB, 2 * GIB, 8 * GIB),
    ),
    "ROCm": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 96.00 MiB. GPU 2 has a total capacity of 64.00 "
        "GiB of which 0 bytes is free. Of the allocated memory 62.00 GiB is allocated by PyTorch, and 512.00 MiB is "
        "reserved by PyTorch but unallocated.",
        OomMessage("HIP", 2, 96 * MIB, 64 * GIB, 0, None, (), None, 62 * GIB, None, 62 * GIB + 512 * MIB),
    ),
    "Ascend": (
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.00 GiB total capacity; 55.00 GiB "
        "already allocated; 55.00 GiB current active; 1.00 GiB free; 58.00 GiB reserved in total by PyTorch)",
        OomMessage("NPU", 0, 2 * GIB, 60 * GIB, GIB, None, (), None, 55 * GIB, None, 58 * GIB),
    ),
    "Apple": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 512.00 KiB, max allowed: "
        "9.00 GiB). Tried to allocate 1.50 GiB on private pool.",
        OomMessage("MPS", None, 3 * GIB // 2, None, None, None, (), 9 * GIB, 8 * GIB, None, None),
    ),
}


def figures(message: OomMessage) -> tuple[object, ...]:
    return (
        message.backend,
        message.device,
        message.requested,
        message.capacity,
        message.free,
        message.process,
        message.others,
        message.allowed,
        message.allocated,
        message.private_free,
        message.reserved,
    )


@pytest.mark.parametrize("version", MESSAGES)
def test_each_version(version: str) -> None:
    text, want = MESSAGES[version]
    (found,) = find_messages(text)
    assert figures(found) == figures(want)


@pytest.mark.parametrize("version", MESSAGES)
def test_in_a_log_of_a_launcher(version: str) -> None:
    """Ranks in front of each line, lines folded, other text around."""
    text, want = MESSAGES[version]
    folded = text.replace("; ", ";\n").replace(". ", ".\n").replace(", and", ",\nand")
    log = "step 1\nTraceback (most recent call last):\n" + folded + "\n\nW1201 12:00:00 sending SIGTERM to 7\n"
    log = "\n".join(f"[rank0]: {line}" for line in log.split("\n"))
    (found,) = find_messages(log)
    assert figures(found) == figures(want)


def test_private_pools_are_taken_off() -> None:
    """The message adds the free blocks of private pools to what is allocated: PyTorch's statistics tell them apart."""
    truth = json.loads((SAMPLES / "stranded_pool.truth.json").read_text())
    (found,) = find_messages(truth["oom_message"])
    assert found.printed_allocated == int(2.5 * GIB)
    assert (found.allocated, found.private_free) == (truth["at_oom"]["allocated"], int(1.5 * GIB))
    assert found.reserved == truth["at_oom"]["reserved"]


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.truth.json")), ids=lambda path: path.name)
def test_figures_are_those_of_the_observer(path: object) -> None:
    truth = json.loads(path.read_text())  # type: ignore[attr-defined]
    if "oom_message" not in truth:
        assert find_messages(json.dumps(truth)) == []
        return
    (found,) = find_messages(json.dumps(truth))
    _, asked, _, free = truth["observer"]
    assert abs(found.requested - asked) <= tolerance(asked)
    assert abs((found.free or 0) - free) <= tolerance(free)
    assert abs((found.capacity or 0) - truth["total_memory"]) <= tolerance(truth["total_memory"])


def test_several_messages_in_order() -> None:
    log = "\n\n".join(text for text, _ in MESSAGES.values())
    assert [found.requested for found in find_messages(log)] == [want.requested for _, want in MESSAGES.values()]


@pytest.mark.parametrize("text", ["", "all is well", "CUDA out of memory", "out of memory. Tried to allocate a lot"])
def test_other_text_holds_none(text: str) -> None:
    assert find_messages(text) == []


@pytest.mark.parametrize("size", [0, 5, 1024, 5926553600, 150109880320, 3 * 2**40])
def test_tolerance_covers_what_printing_drops(size: int) -> None:
    from snapana.units import parse_size

    assert abs(parse_size(format_bytes(size)) - size) <= tolerance(size)
