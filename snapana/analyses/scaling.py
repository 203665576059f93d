"""How requests grow with the batch: measured in two recordings of one program, or guessed from one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.categories import ACTIVATIONS, INPUTS, OTHER, PARAMETERS, WORKSPACE, categorise
from snapana.analyses.phases import stack_traits
from snapana.analyses.steps import steps
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Steps with more allocations are paired by their order within each line of code, not by alignment.
_MOST_ALIGNED = 4_000
# Recordings of which less can be paired are not of one program.
_LEAST_PAIRED = 0.5
# Casts of smaller parameters are told by those of larger ones.
_LARGE = 64 * 1024
_MOST_CAST = 0.7
# Sizes so near to the ratio of the batches are in it: losses add a few bytes.
_NEAR = 0.01
# How good a pair is: equal sizes or sizes in the batches' ratio, or something between the two.
_CLEAR, _BETWEEN = 3, 2


@dataclass(frozen=True)
class Scaling:
    """What each allocation of a recording asks for at another batch.

    Attributes:
        requested: bytes at the recorded batch, by number of the allocation.
        per_sample: bytes more for each further element of the batch, by the best guess.
        low_per_sample: the least that it may be: what is not known to grow is constant.
        high_per_sample: the most.
        batch: the recorded one.
        paired: allocations whose growth was measured, None where it is guessed.

    """

    requested: IntArray
    per_sample: FloatArray
    low_per_sample: FloatArray
    high_per_sample: FloatArray
    batch: int
    paired: int | None = None

    def at(self, batch: int, bound: str = "best") -> IntArray:
        """Give the bytes that each allocation asks for at a batch: by the best guess, at ``least`` or at ``most``."""
        slopes = {"best": self.per_sample, "least": self.low_per_sample, "most": self.high_per_sample}
        if bound != "best" and batch < self.batch:
            # What grows least shrinks least.
            slopes["least"], slopes["most"] = slopes["most"], slopes["least"]
        grown = self.requested + slopes[bound] * (batch - self.batch)
        return np.maximum(np.rint(grown), 1).astype(np.int64)


def guessed(snapshot: Snapshot, device: int, batch: int) -> Scaling:
    """Guess from one recording what grows in proportion: activations and inputs whose bytes the batch divides.

    Copies of parameters in half precision, as ``torch.autocast`` makes them, do not. The bounds: a block of the
    backward pass with the size of a parameter may be made for that parameter; libraries choose their workspaces
    freely; and what is of no known kind may grow as well.
    """
    lives = snapshot.replay[device].allocations
    requested = lives["requested"].to_numpy().astype(np.int64)
    codes = categorise(snapshot, device)
    traits = stack_traits(snapshot)
    stack = lives["stack"].to_numpy()
    in_proportion = requested / batch
    share = np.where((requested % batch == 0) & (requested > 0), in_proportion, 0.0)
    of_batch = np.isin(codes, [ACTIVATIONS, INPUTS])
    steady = ~of_batch & ~np.isin(codes, [WORKSPACE, OTHER])
    like_weight = traits.backward[stack] & np.isin(requested, np.unique(requested[steady]))
    cast = _casts(requested, codes == PARAMETERS, (codes == ACTIVATIONS) & traits.module[stack])
    passing = (lives["free_requested"].to_numpy() >= 0) & ~steady
    return Scaling(
        requested=requested,
        per_sample=np.where(of_batch, share * (1 - cast), 0.0),
        low_per_sample=np.where(of_batch & ~like_weight & (cast == 0), share, 0.0),
        high_per_sample=np.where(passing & (cast < 1), in_proportion, 0.0),
        batch=batch,
    )


def _casts(requested: IntArray, parameter: BoolArray, forward: BoolArray) -> FloatArray:
    """Give for each allocation how likely it is the copy of a parameter in half precision.

    The forward pass makes them with half the size of the parameter, once each. They are there if most large parameters
    have some; where more blocks have such a size, activations have it as well.
    """
    sizes, count = np.unique(requested[parameter], return_counts=True)
    made = np.array([int((forward & (requested == size // 2)).sum()) for size in sizes.tolist()], dtype=np.float64)
    large = sizes >= _LARGE
    none = np.zeros(len(requested), dtype=np.float64)
    if not large.any() or float((made[large] > 0).mean()) < _MOST_CAST:
        return none
    known = made > 0
    passes = float(np.median(made[known & large] / count[known & large]))
    chance = dict(zip((sizes[known] // 2).tolist(), np.minimum(passes * count[known] / made[known], 1.0), strict=True))
    for size, value in chance.items():
        none[forward & (requested == size)] = value
    return none


def measured(snapshot: Snapshot, batch: int, other: Snapshot, other_batch: int, device: int) -> Scaling:
    """Measure in two recordings of one program what each allocation of the first gains with the batch.

    Allocations are paired step by step, in order, where the same line of code made them and their sizes allow it: a
    block does not shrink when the batch grows, and does not grow more than the batch. Unpaired ones are constant. The
    bounds: what is not paired, or grew neither in proportion nor not at all, as workspaces do, may do either.

    Args:
        snapshot: the recording whose allocations are scaled.
        batch: of it.
        other: another recording, of any length.
        other_batch: of that.
        device: ordinal in both.

    Raises:
        SnapanaError: ``plan.unlike`` where less than half of the bytes can be paired.

    """
    own, theirs = (one.replay[device].allocations for one in (snapshot, other))
    requested, before = (one["requested"].to_numpy().astype(np.int64) for one in (own, theirs))
    lines = _lines(snapshot, own), _lines(other, theirs)
    numbers = pd.factorize(pd.Series([*lines[0], *lines[1]], dtype=object))[0]
    own_line, their_line = numbers[: len(own)], numbers[len(own) :]
    partner = np.full(len(own), -1, dtype=np.int64)
    known: dict[tuple[bytes, ...], list[tuple[int, int]]] = {}
    own_rows, their_rows = _rows_by_step(snapshot, device), _rows_by_step(other, device)
    for number, mine in enumerate(own_rows):
        yours = their_rows[min(number, len(their_rows) - 1)]
        shape = (own_line[mine], requested[mine], their_line[yours], before[yours])
        # Most steps are like the one before.
        key = tuple(part.tobytes() for part in shape)
        if key not in known:
            known[key] = _pairs(*shape, ratio=batch / other_batch)
        for left, right in known[key]:
            partner[mine[left]] = yours[right]
    found = partner >= 0
    if requested[found].sum() < _LEAST_PAIRED * requested.sum():
        raise SnapanaError(
            "plan.unlike",
            f"{snapshot.info.name} and {other.info.name} do not look like one program at two batch sizes.",
            "Record the same script twice, with nothing changed but the batch.",
        )
    gained = np.where(found, requested - before[partner], 0) / (batch - other_batch)
    in_proportion = requested / batch
    clear = found & ((gained == 0) | (np.abs(gained - in_proportion) <= _NEAR * in_proportion))
    return Scaling(
        requested=requested,
        per_sample=gained,
        low_per_sample=np.where(clear, gained, 0.0),
        high_per_sample=np.where(clear, gained, in_proportion),
        batch=batch,
        paired=int(found.sum()),
    )


def _lines(snapshot: Snapshot, lives: pd.DataFrame) -> list[tuple[str, ...]]:
    """Name for each allocation what made it: innermost Python function and site, without numbers of lines."""
    names: list[tuple[str, ...]] = []
    for stack in range(len(snapshot.stacks)):
        frames = [one for one in snapshot.stacks.frames_of(stack) if one[3] not in {"cpp", "unwinder"}]
        site = snapshot.stacks.site(stack)
        inner = frames[0][:2] if frames else ("", "")
        names.append((*inner, site.file, site.function))
    names.append(())
    return [names[stack] for stack in lives["stack"].tolist()]


def _rows_by_step(snapshot: Snapshot, device: int) -> list[IntArray]:
    """Give the allocations of each step; those before the first belong to it, those after the last to that."""
    born = snapshot.replay[device].allocations["alloc"].to_numpy()
    starts = steps(snapshot, device).table["start_event"].to_numpy(dtype=np.int64)[1:]
    step = np.searchsorted(starts, born, side="right")
    return [np.flatnonzero(step == number) for number in range(len(starts) + 1)]


def _pairs(
    line: IntArray, size: IntArray, other_line: IntArray, other_size: IntArray, *, ratio: float
) -> list[tuple[int, int]]:
    """Pair two lists of allocations in order, so that as many as can be fit well."""
    if max(len(line), len(other_line)) > _MOST_ALIGNED:
        return _by_occurrence(line, other_line)
    best = np.zeros((len(line) + 1, len(other_line) + 1), dtype=np.int32)
    fits = np.zeros((len(line), len(other_line)), dtype=np.int8)
    for row in range(len(line)):
        low, high = sorted((float(size[row]), size[row] / ratio))
        clear = (other_size == size[row]) | (np.abs(other_size - size[row] / ratio) <= 0.5)
        between = (other_size > low) & (other_size < high)
        fits[row] = np.where(other_line == line[row], np.where(clear, _CLEAR, np.where(between, _BETWEEN, 0)), 0)
        joined = np.where(fits[row] > 0, best[row, :-1] + fits[row], 0)
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], joined))
    pairs = []
    row, column = len(line), len(other_line)
    while row and column:
        value = int(fits[row - 1, column - 1])
        if value and best[row, column] == best[row - 1, column - 1] + value:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif best[row, column] == best[row - 1, column]:
            row -= 1
        else:
            column -= 1
    return pairs


def _by_occurrence(line: IntArray, other_line: IntArray) -> list[tuple[int, int]]:
    """Pair the n-th allocation of each line with the n-th of the other list."""
    first, second = (
        pd.DataFrame({"line": codes, "number": pd.Series(codes).groupby(codes).cumcount(), "row": range(len(codes))})
        for codes in (line, other_line)
    )
    joined = first.merge(second, on=["line", "number"])
    return list(zip(joined["row_x"].tolist(), joined["row_y"].tolist(), strict=True))
