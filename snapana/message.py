"""PyTorch's out-of-memory message, of any version, found in a log and taken apart.

Wordings: c10/cuda/CUDACachingAllocator.cpp (``malloc``) of the releases since 1.0, c10/xpu/XPUCachingAllocator.cpp,
torch_npu's NPUCachingAllocator.cpp and aten/src/ATen/mps/MPSAllocator.mm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snapana.units import parse_size

# A message is one paragraph; with a dozen processes on the card it has less than this.
_LONGEST = 6_000
_SIZE = r"([\d.]+ ?(?:bytes|[KMGT]iB))"
_START = re.compile(r"\b([A-Za-z]+)(?: backend)? out of memory[.\s(]", re.IGNORECASE)
# What launchers put in front of each line: ranks, workers, dates, levels.
_PREFIX = re.compile(
    r"^(?:\s*\[[^\]\n]{1,40}\]:?|\s*\([^)\n]{0,60}pid=\d+[^)\n]*\)|\s*\d+:|\s*[|>])+[ \t]*", re.MULTILINE
)


@dataclass(frozen=True)
class OomMessage:
    """Figures of one message, in bytes as printed: to two decimals of their unit. None where it has none.

    Attributes:
        backend: ``CUDA``, ``HIP``, ``XPU``, ``NPU`` or ``MPS``.
        device: ordinal of the device.
        requested: size of the segment that was asked of the driver.
        capacity: the card's size.
        free: free with the driver.
        process: what this process had in use, libraries and context included.
        others: (process id, bytes) of each other process on the card.
        allowed: the limit that was set on PyTorch.
        allocated: bytes in use by tensors; free blocks of private pools, which the newer messages count in,
            are taken off again.
        private_free: free blocks of private pools, which the message calls allocated.
        reserved: all segments.
        printed_allocated: ``allocated`` as the message prints it.
        names_limits: whether the form is one that prints a limit wherever one is set.
        text: the message, white space straightened.

    """

    backend: str
    device: int | None
    requested: int
    capacity: int | None = None
    free: int | None = None
    process: int | None = None
    others: tuple[tuple[int, int], ...] = ()
    allowed: int | None = None
    allocated: int | None = None
    private_free: int | None = None
    reserved: int | None = None
    printed_allocated: int | None = None
    names_limits: bool = False
    text: str = ""

    @property
    def others_total(self) -> int | None:
        """Bytes of all other processes; None where the message does not say which process is this one.

        In a container PyTorch does not know its own number: then it is among the others.
        """
        return sum(size for _, size in self.others) if self.process is not None else None

    @property
    def outside(self) -> int | None:
        """Bytes of this process outside of PyTorch's allocator: context, kernels, NCCL, other libraries."""
        if self.process is None or self.reserved is None:
            return None
        return max(0, self.process - self.reserved)


def find_messages(text: str) -> list[OomMessage]:
    """Find all out-of-memory messages of a text, in order; those without the size asked for are no messages."""
    clean = _PREFIX.sub("", text)
    starts = list(_START.finditer(clean))
    found = []
    for position, start in enumerate(starts):
        end = starts[position + 1].start() if position + 1 < len(starts) else len(clean)
        message = _parse(start.group(1).upper(), _paragraph(clean[start.start() : min(end, start.start() + _LONGEST)]))
        if message is not None:
            found.append(message)
    return found


def _paragraph(text: str) -> str:
    """Join the lines of the message; an empty line ends it."""
    return " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())


def _parse(backend: str, text: str) -> OomMessage | None:
    requested = _find(text, rf"Tried to allocate {_SIZE}")
    if requested is None:
        return None
    if backend == "MPS":
        return _mps(text, requested)
    old = re.search(r"Tried to allocate [^(.]*\.?[^(]*\((?:GPU|NPU|XPU) (\d+);", text)
    return _old(backend, text, requested, int(old.group(1))) if old else _new(backend, text, requested)


def _old(backend: str, text: str, requested: int, device: int) -> OomMessage:
    """Read the form until 2.0, and torch_npu's: figures in brackets."""
    allocated = _find(text, rf"{_SIZE} already allocated")
    return OomMessage(
        backend=backend,
        device=device,
        requested=requested,
        capacity=_find(text, rf"{_SIZE} total capacity"),
        free=_find(text, rf"{_SIZE} free"),
        allowed=_find(text, rf"{_SIZE} allowed"),
        allocated=allocated,
        reserved=_find(text, rf"{_SIZE} (?:reserved in total by PyTorch|cached)"),
        printed_allocated=allocated,
        text=text,
    )


def _new(backend: str, text: str, requested: int) -> OomMessage:
    """Read the form since 2.1: sentences."""
    device = re.search(r"(?:GPU|NPU|XPU) (\d+) has a total", text)
    printed = _find(text, rf"Of the allocated memory,? {_SIZE} is allocated by PyTorch")
    private = _find(text, rf"with {_SIZE} allocated in private pools")
    unallocated = _find(text, rf"{_SIZE} is reserved by PyTorch but unallocated")
    others = re.findall(rf"Process (\d+) has {_SIZE} memory in use", text)
    capacity = _find(text, rf"has a total capaci?ty of {_SIZE}")
    process = _find(text, rf"this process has {_SIZE} memory in use")
    if process is not None and capacity is not None and process > capacity + tolerance(capacity):
        # Some drivers answer with a number that stands for none.
        process = None
    return OomMessage(
        backend=backend,
        device=int(device.group(1)) if device else None,
        requested=requested,
        # PyTorch 2.1 wrote "capacty".
        capacity=capacity,
        free=_find(text, rf"of which {_SIZE} is free"),
        process=process,
        others=tuple((int(number), _bytes(size)) for number, size in others),
        allowed=_find(text, rf"{_SIZE} allowed"),
        allocated=None if printed is None else printed - (private or 0),
        private_free=private,
        reserved=None if printed is None or unallocated is None else printed + unallocated,
        printed_allocated=printed,
        names_limits=True,
        text=text,
    )


def _mps(text: str, requested: int) -> OomMessage:
    allocated = _find(text, rf"MPS allocated: {_SIZE}")
    return OomMessage(
        backend="MPS",
        device=None,
        requested=requested,
        allowed=_find(text, rf"max allowed: {_SIZE}"),
        allocated=allocated,
        printed_allocated=allocated,
        text=text,
    )


def _find(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return _bytes(found.group(1)) if found else None


def _bytes(text: str) -> int:
    """Read ``512.00 MiB`` or ``0 bytes``, to the nearest byte."""
    return int(text.split()[0]) if text.endswith("bytes") else parse_size(text)


def tolerance(size: int) -> int:
    """Give by how many bytes a printed size may differ from the true one: half of its last decimal, rounded up."""
    unit = 1
    while size >= unit * 1024 and unit < 1024**4:
        unit *= 1024
    return 0 if unit == 1 else unit // 200 + 1
