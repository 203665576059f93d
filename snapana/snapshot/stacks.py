"""Stacks, interned: what kind of code a frame is, and which line a stack is attributed to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.plain import plain_text

NO_STACK = "(no stack)"

_UNWINDER = re.compile(r"unwind::unwind|CapturedTraceback::gather|gather_with_cpp|symbolize")
_GENERATED = re.compile(r"<eval_with_key>|torchinductor_|/torch_compile_debug/|/inductor_cache/")
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
_TORCH = re.compile(r"/(?:site|dist)-packages/(?:torch|torchgen|functorch)/|/pytorch/torch/")
_STDLIB = re.compile(r"/lib(?:64)?/python3\.\d+t?/|/Lib/(?!site-packages)|^<frozen ")
_CPP_FILE = re.compile(r"\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp|inl|S|so(?:\.\d+)*)$")
# Frames between the unwinder and the operator say nothing about who asked for memory.
_PLUMBING = re.compile(
    r"CachingAllocator|c10::impl::|c10::Dispatcher|c10::KernelFunction|at::_ops::|::redispatch|"
    r"empty_generic|empty_cuda|empty_strided|raw_alloc|BoxedKernel|wrap_kernel_functor|make_boxed|"
    r"^_?Py(?:Eval|Object|Function|Vectorcall|_)|^_Py|^_start$|__libc_start|^__clone|^clone$|^start_thread$|"
    r"pthread|std::error_code|THPVariable_|Engine::|PythonEngine|autograd::Node::operator"
)
_AUTOGRAD_NODE = re.compile(r"(?:^|::|\s)(\w+?)(?:_apply_functional(?:_ivalue)?\(|::apply\()")


@dataclass(frozen=True)
class Site:
    """The line that a stack is attributed to; two stacks of equal sites count together.

    Attributes:
        label: what people read, such as ``"train.py:91 loss_of"``.
        file: the frame's file as recorded; empty where the label is no Python line.
        line: the frame's line, 0 if unknown.
        function: the frame's function.
        kind: class of the frame: ``user``, ``library``, ``backward``, ``torch``, ``stdlib``,
            ``generated``, ``cpp`` or ``none``.

    """

    label: str
    file: str
    line: int
    function: str
    kind: str


NO_SITE = Site(NO_STACK, "", 0, "", "none")


def classify_frame(name: str, filename: str) -> str:
    """Name the kind of code a frame is: see DESIGN of the frame classes.

    Returns:
        ``user``, ``library`` (site-packages), ``torch``, ``stdlib``, ``generated`` (inductor, fx),
        ``cpp`` or ``unwinder``.

    """
    path = filename.replace("\\", "/")
    if _UNWINDER.search(name):
        return "unwinder"
    if path in {"", "??", "none"} or _CPP_FILE.search(path):
        return "cpp"
    if _GENERATED.search(path):
        return "generated"
    if _TORCH.search(path):
        return "torch"
    if _PACKAGES.search(path):
        return "library"
    if _STDLIB.search(path):
        return "stdlib"
    return "user"


def _label(filename: str, line: int, function: str) -> str:
    short = filename.replace("\\", "/").rsplit("/", 1)[-1] or filename
    return f"{short}:{line} {function}"


def _short_cpp(name: str) -> str:
    """Cut arguments and templates off a C++ name."""
    plain = (
        name.split("(", 1)[0] if "(anonymous namespace)" not in name else name.replace("(anonymous namespace)::", "")
    )
    plain = plain.split("(", 1)[0].split("<", 1)[0].strip()
    return plain.rsplit(" ", 1)[-1] or name


def find_site(frames: Sequence[tuple[str, str, int, str]]) -> Site:
    """Choose the site of one stack.

    Args:
        frames: ``(name, filename, line, kind)``, innermost first.

    Returns:
        The innermost ``user`` frame; else the innermost ``library`` frame; else the autograd node;
        else the first ``torch``, ``generated``, ``stdlib`` or ``cpp`` frame that is neither unwinder nor
        allocator or dispatcher; else ``(no stack)``.

    """
    for wanted in ("user", "library"):
        for name, filename, line, kind in frames:
            if kind == wanted:
                return Site(_label(filename, line, name), filename, line, name, kind)
    for name, _, _, kind in frames:
        node = _AUTOGRAD_NODE.search(name) if kind == "cpp" and "autograd" in name else None
        if node:
            return Site(f"{node.group(1)} (backward)", "", 0, node.group(1), "backward")
    for name, filename, line, kind in frames:
        if kind in {"torch", "generated", "stdlib"}:
            return Site(_label(filename, line, name), filename, line, name, kind)
        if kind == "cpp" and not _PLUMBING.search(name):
            short = _short_cpp(name)
            return Site(f"{short} (C++)", "", 0, short, "cpp")
    return NO_SITE


@dataclass(frozen=True)
class Stacks:
    """All stacks of one file, each kept once.

    Attributes:
        frames: one row per distinct frame (index: frame id): ``name``, ``filename``, ``line``, ``kind``.
        stacks: stack id to its frame ids, innermost first.
        forward: stack id to the text of its forward stack (anomaly mode), where there is one.

    """

    frames: pd.DataFrame
    stacks: tuple[tuple[int, ...], ...]
    forward: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stacks)

    @cached_property
    def _rows(self) -> list[tuple[str, str, int, str]]:
        columns = (self.frames[name].tolist() for name in ("name", "filename", "line", "kind"))
        return list(zip(*columns, strict=True))

    def frames_of(self, stack: int) -> list[tuple[str, str, int, str]]:
        """Give ``(name, filename, line, kind)`` of a stack, innermost first; empty for -1."""
        return [self._rows[frame] for frame in self.stacks[stack]] if stack >= 0 else []

    def text(self, stack: int, *, limit: int = 40) -> list[str]:
        """Write a stack as lines ``file:line function``, innermost first, at most ``limit``."""
        lines = [
            f"{filename}:{line} {name}" if filename not in {"", "??"} else name
            for name, filename, line, kind in self.frames_of(stack)
            if kind != "unwinder"
        ]
        return lines if len(lines) <= limit else [*lines[:limit], f"... {len(lines) - limit} more frames"]

    @cached_property
    def site_table(self) -> tuple[tuple[Site, ...], tuple[int, ...]]:
        """Distinct sites, and for each stack id the index of its site."""
        index: dict[Site, int] = {}
        of_stack = tuple(
            index.setdefault(find_site([self._rows[frame] for frame in stack]), len(index)) for stack in self.stacks
        )
        return tuple(index), of_stack

    def site(self, stack: int) -> Site:
        """Give the site of a stack; ``(no stack)`` for -1."""
        if stack < 0:
            return NO_SITE
        sites, of_stack = self.site_table
        return sites[of_stack[stack]]


class StackInterner:
    """Collects stacks while a file is read.

    PyTorch captures a new stack object for most events, though few differ: the frame dicts are shared, so
    their identities are numbered first and stacks compared as arrays of these numbers.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def add_many(self, stacks: Sequence[Sequence[Any]]) -> npt.NDArray[np.int64]:
        """Give the id of each stack; -1 for one without frames. Frame dicts must stay alive meanwhile."""
        length = np.fromiter(map(len, stacks), dtype=np.int64, count=len(stacks))
        identity = np.fromiter(map(id, chain.from_iterable(stacks)), dtype=np.int64, count=int(length.sum()))
        codes, distinct = pd.factorize(identity)
        first = first_occurrence(codes, len(distinct))
        flat = np.array(self._number_frames(stacks, length, first), dtype=np.int64)[codes]
        end = np.cumsum(length)
        group = _group_rows(flat, end - length, length)
        examples = first_occurrence(group, int(group.max(initial=-1)) + 1)
        ids = [self._intern(flat[end[row] - length[row] : end[row]].tolist()) for row in examples.tolist()]
        return np.array(ids, dtype=np.int64)[group]

    def _number_frames(
        self, stacks: Sequence[Sequence[Any]], length: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> list[int]:
        """Number the frames at the given positions of all stacks laid end to end."""
        end = np.cumsum(length)
        row = np.searchsorted(end, positions, side="right")
        offset = positions - (end - length)[row]
        frames = (stacks[one][place] for one, place in zip(row.tolist(), offset.tolist(), strict=True))
        return [self._frames.setdefault(_frame_key(frame), len(self._frames)) for frame in frames]

    def _intern(self, key: list[int]) -> int:
        return self._stacks.setdefault(tuple(key), len(self._stacks)) if key else -1

    def finish(self, forward: Mapping[int, Any]) -> Stacks:
        """Freeze what was collected.

        Args:
            forward: for stacks that came with one, the forward stack: text in pieces, from anomaly mode.

        """
        names = [key[0] for key in self._frames]
        files = [key[1] for key in self._frames]
        frames = pd.DataFrame(
            {
                "name": pd.Series(names, dtype=object),
                "filename": pd.Series(files, dtype=object),
                "line": pd.Series([key[2] for key in self._frames], dtype="int64"),
                "kind": pd.Series(list(map(classify_frame, names, files)), dtype=object),
            }
        )
        texts = {stack: _forward_text(parts) for stack, parts in forward.items() if isinstance(parts, list)}
        return Stacks(frames, tuple(self._stacks), texts)


def _forward_text(parts: list[Any]) -> str:
    return "".join(plain_text(part, lines=True) for part in parts[:100])[:20_000]


def first_occurrence(codes: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Give for each code from 0 to ``count`` - 1 where it occurs first."""
    first = np.zeros(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def _group_rows(
    flat: npt.NDArray[np.int64], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Number equal rows of a ragged array alike: by a hash, then checked element by element."""
    place = np.arange(len(flat)) - np.repeat(start, length)
    weight = _scramble(np.arange(int(length.max(initial=0)), dtype=np.uint64))
    mixed = (flat.astype(np.uint64) + np.uint64(1)) * weight[place]
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    digest = sums[start + length] - sums[start] + length.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    group: npt.NDArray[np.int64] = pd.factorize(digest)[0].astype(np.int64)
    example = first_occurrence(group, int(group.max(initial=-1)) + 1)[group]
    same_length = length[example] == length
    same = flat == flat[np.minimum(np.repeat(start[example], length) + place, max(len(flat) - 1, 0))]
    if same_length.all() and same.all():
        return group
    rows = [tuple(flat[begin : begin + size].tolist()) for begin, size in zip(start, length, strict=True)]
    return pd.factorize(pd.Series(rows, dtype=object))[0].astype(np.int64)


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Turn small numbers into well mixed odd 64-bit ones (the finalizer of splitmix64)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _frame_key(frame: Any) -> tuple[str, str, int]:
    if not isinstance(frame, dict):
        return plain_text(frame), "", 0
    line = frame.get("line", 0)
    # Unknown lines are written as 0 or as -1 in 64 bits.
    known = isinstance(line, int) and 0 <= line < 2**31
    return plain_text(frame.get("name", "")), plain_text(frame.get("filename", "")), line if known else 0
