"""What the memory is for: parameters, gradients, optimizer state, activations, workspaces, inputs.

No recording says so; it is told from stacks, and from when a block was born and freed relative to the forward pass,
the backward pass and the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.phases import StackTraits, stack_traits
from snapana.analyses.rules import CATEGORIES, Rule, matches
from snapana.analyses.spans import spans_of
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACE, INPUTS, OTHER = range(len(CATEGORIES))

# Sizes of cuBLAS and cuBLASLt workspaces: their defaults by architecture, and what CUBLAS_WORKSPACE_CONFIG gives.
WORKSPACE_SIZES = (33_554_432, 8_519_680, 1_048_576, 4_194_304, 4_325_376, 16_777_216, 134_217_728)
_LARGE_WORKSPACE = 8_000_000


@dataclass(frozen=True)
class Categories:
    """Bytes by category at one instant.

    Attributes:
        event: the instant.
        bytes: occupied bytes by name, in the order of ``CATEGORIES``.
        requested: bytes asked for, likewise.

    """

    event: int
    bytes: dict[str, int]
    requested: dict[str, int]

    @property
    def total(self) -> int:
        """All categories together: what is allocated."""
        return sum(self.bytes.values())


def categories_at(snapshot: Snapshot, device: int, event: int, codes: IntArray) -> Categories:
    """Sum what is allocated after an event by category.

    Args:
        snapshot: the file.
        device: ordinal.
        event: the instant.
        codes: as of ``categorise``.

    """
    live = snapshot.replay[device].live(event)
    own = codes[live.index.to_numpy()]
    sums = {}
    for name in ("size", "requested"):
        weights = live[name].to_numpy()
        sums[name] = {category: int(weights[own == code].sum()) for code, category in enumerate(CATEGORIES)}
    return Categories(event, sums["size"], sums["requested"])


def kept_gradients(snapshot: Snapshot, device: int, event: int, codes: IntArray) -> int:
    """Sum the gradients alive after an event that an optimizer step which ended before it has used already.

    The buckets of DistributedDataParallel stay by design and do not count.
    """
    _, ends = spans_of(snapshot, device, "Optimizer.step#")
    passed = ends[ends < event]
    if not len(passed):
        return 0
    live = snapshot.replay[device].live(event)
    old = (codes[live.index.to_numpy()] == GRADIENTS) & (live["alloc"].to_numpy() <= passed[-1])
    old &= ~stack_traits(snapshot).data_parallel[live["stack"].to_numpy()]
    return int(live["size"].to_numpy()[old].sum())


def categorise(snapshot: Snapshot, device: int, rules: Sequence[Rule] = ()) -> IntArray:
    """Give each allocation of a device its category, as index into ``CATEGORIES`` of ``rules``.

    Args:
        snapshot: the file.
        device: ordinal.
        rules: of the user; the first that matches wins over all that is known here.

    """
    lives = snapshot.replay[device].allocations
    traits = stack_traits(snapshot)
    facts = _Facts(snapshot, device, lives, traits)
    codes = np.full(len(lives), OTHER, dtype=np.int64)
    # From the weakest rule to the strongest: later ones win.
    for code, mask in (
        (ACTIVATIONS, facts.activations()),
        (INPUTS, facts.inputs()),
        (PARAMETERS, facts.parameters()),
        (GRADIENTS, facts.gradients),
        (OPTIMIZER, facts.optimizer()),
        (WORKSPACE, facts.workspaces()),
    ):
        codes[mask] = code
    for code, mask in matches(snapshot, device, rules):
        codes[mask] = code
    return codes


class _Facts:
    """Birth, death and traits of each allocation."""

    def __init__(self, snapshot: Snapshot, device: int, lives: pd.DataFrame, traits: StackTraits) -> None:
        self.lives = lives
        self.traits = traits
        events = snapshot.replay[device].events
        self.stack = lives["stack"].to_numpy()
        self.born = lives["alloc"].to_numpy()
        freed = lives["free_requested"].to_numpy()
        self.last = len(events)
        self.died = np.where(freed == -1, self.last, freed)
        stacks = np.append(events["stack"].to_numpy(), -1).astype(np.int64)
        self.free_stack = np.where(freed >= 0, stacks[freed], -1)
        self.known = self.born >= 0
        # Without contexts no event has a stack, and having none means nothing.
        seen = stacks[self.born[self.known]]
        self.has_stacks = bool(len(seen)) and float(traits.python[seen].mean()) > 0.05
        steps = spans_of(snapshot, device, "Optimizer.step#")
        zeros = spans_of(snapshot, device, "Optimizer.zero_grad#")
        self.step_start, self.step_end = steps
        self.in_step = _inside(self.born, *steps)
        self.zeroed = _inside(np.where(freed >= 0, freed, -1), *zeros) | self._of_free("zero_grad")

    def _of(self, trait: str) -> BoolArray:
        values: BoolArray = getattr(self.traits, trait)[self.stack]
        return values

    def _of_free(self, trait: str) -> BoolArray:
        values: BoolArray = getattr(self.traits, trait)[self.free_stack]
        return values & (self.free_stack >= 0)

    def _meets_step(self) -> BoolArray:
        """Mark blocks that are there when some optimizer step begins."""
        return self._alive_at(self.step_start)

    def _alive_at(self, instants: IntArray) -> BoolArray:
        if not len(instants):
            return np.zeros(len(self.born), dtype=bool)
        following = np.searchsorted(instants, self.born, side="left")
        found = following < len(instants)
        return found & (self.died > instants[np.minimum(following, len(instants) - 1)])

    def _backward(self) -> BoolArray:
        made = self._of("backward") & (self._of("python") | self.has_stacks)
        return made & self.known & ~self._of("module") & ~self._of("optimizer") & ~self.in_step

    def _forward(self) -> BoolArray:
        return self._of("module") & ~self._of("optimizer") & ~self._constructed()

    def _constructed(self) -> BoolArray:
        """Made while a model was built: before anything is trained, outside of any module's call."""
        return (self._of("apply") | self._of("build")) & ~self._of("module") & ~self._of("optimizer")

    def _no_stack(self) -> BoolArray:
        return self.stack < 0

    def optimizer(self) -> BoolArray:
        own = self._of("optimizer") & ~self._of("zero_grad")
        return own | (self._no_stack() & self.in_step & self._alive_at(self.step_end))

    @cached_property
    def gradients(self) -> BoolArray:
        """Blocks of the backward pass that an optimizer step finds, and all that zero_grad() frees."""
        zeroed = self.zeroed & ~self.in_step & ~self._of("optimizer")
        return (self._backward() & self._meets_step()) | zeroed | self._of("data_parallel")

    def parameters(self) -> BoolArray:
        lasts = self._meets_step() if len(self.step_start) else self.died >= self.last
        return (self._constructed() & lasts) | self.like_gradients

    @cached_property
    def like_gradients(self) -> BoolArray:
        """Mark blocks without a stack, from before the first step, of which each has a gradient of its size."""
        found = np.zeros(len(self.born), dtype=bool)
        # Gradients of one step: those that the last step that has any finds.
        for start in self.step_start[::-1].tolist():
            one = self.gradients & (self.born < start) & (self.died > start)
            if one.any():
                break
        else:
            return found
        size = self.lives["requested"].to_numpy()
        unknown = self._no_stack() & (~self.known | (not self.has_stacks))
        early = self.born < int(self.step_start[0])
        left = pd.Series(size[one]).value_counts().to_dict()
        for row in np.flatnonzero(unknown & early & (self.died >= self.last) & ~self.zeroed).tolist():
            if left.get(int(size[row]), 0):
                left[int(size[row])] -= 1
                found[row] = True
        return found

    def workspaces(self) -> BoolArray:
        size = self.lives["requested"].to_numpy()
        usual = np.isin(size, WORKSPACE_SIZES)
        # A handle's workspace stays from its first use on; another of the size of a cuBLASLt one may lie beside it.
        stays = self.died >= self.last
        ordinary = self._constructed() | self._of("optimizer") | self._of("direct") | self.zeroed
        ordinary |= self._of("data_parallel") | self.like_gradients | self.in_step
        candidates = usual & stays & ~ordinary
        single = self._only_of_size(size, candidates) | (self._no_stack() & (not self.has_stacks))
        large = candidates & (size >= _LARGE_WORKSPACE) & single
        beside = candidates & (size < _LARGE_WORKSPACE) & self._beside(large)
        within_operator = (self.free_stack == self.stack) & (self.stack >= 0) & (self.died - self.born <= 64)
        temporary: BoolArray = self._of("convolution") & within_operator
        return large | beside | temporary | self._of("workspace")

    def _only_of_size(self, size: IntArray, candidates: BoolArray) -> BoolArray:
        """Of candidates of one size and stream keep those whose stack made only one: a layer makes many."""
        chosen = np.flatnonzero(candidates)
        key = pd.DataFrame(
            {
                "size": size[chosen],
                "stack": self.stack[chosen],
                "stream": self.lives["stream"].to_numpy()[chosen],
            }
        )
        single = ~key.duplicated(keep=False).to_numpy()
        found = np.zeros(len(size), dtype=bool)
        found[chosen[single]] = True
        return found

    def _beside(self, large: BoolArray) -> BoolArray:
        """Mark allocations with the stack of a large workspace, a few events from it."""
        found = np.zeros(len(self.born), dtype=bool)
        for row in np.flatnonzero(large).tolist():
            near = np.abs(self.born - self.born[row]) <= 8
            found |= near & (self.stack == self.stack[row])
        return found

    def _trains(self) -> bool:
        """Whether anything is known of a forward pass: without one, lines of user code are just that."""
        return bool(self._forward().any())

    def inputs(self) -> BoolArray:
        """Made by the user's own line, outside of modules, and not after the forward pass: what is fed to it."""
        if not self.last or not self._trains():
            return np.zeros(len(self.born), dtype=bool)
        kind = np.zeros(self.last, dtype=np.int8)
        forward = self._forward() & self.known
        other = self.known & (self._backward() | self._of("optimizer") | self._constructed())
        kind[self.born[other]] = 1
        kind[self.born[forward]] = 2
        latest = np.maximum.accumulate(np.where(kind > 0, np.arange(self.last), -1))
        own = self.known & self._of("python") & ~self._forward() & ~self._constructed() & ~self._of("optimizer")
        own &= ~self._of("backward") & ~self._of("data_parallel") & ~self.in_step
        before = latest[np.maximum(self.born, 0)]
        fed = own & ((before < 0) | (kind[np.maximum(before, 0)] != 2))
        # A line that feeds once feeds always: in inference no backward pass lies between.
        first = pd.Series(fed[own], index=self.stack[own]).groupby(level=0).first()
        feeding = first.index[first.to_numpy()].to_numpy()
        found: BoolArray = own & np.isin(self.stack, feeding)
        return found

    def activations(self) -> BoolArray:
        own = self.known & ~self._of("optimizer") & ~self.in_step & ~self._constructed()
        if not self._trains():
            return own & self._backward()
        return own & (self._of("python") | self._backward())


def _inside(events: IntArray, starts: IntArray, ends: IntArray) -> BoolArray:
    """Mark events that lie in one of the spans, which are sorted and do not overlap."""
    if not len(starts):
        return np.zeros(len(events), dtype=bool)
    span = np.searchsorted(starts, events, side="right") - 1
    return (events >= 0) & (span >= 0) & (events <= ends[np.maximum(span, 0)])
