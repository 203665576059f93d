"""Sites whose live bytes grow step after step: growth, not survival, is a leak."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.steps import Steps
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Fewer steps than this show no trend.
MIN_STEPS = 4
# Over so few steps a site is judged only where each adds exactly the same: warm-up takes some of them, and what the
# last one made is still in use.
STRICT_STEPS = 5
# So many steps must leave blocks behind.
MIN_GROWTHS = 3
# And so many where steps were guessed: a loop that collects its results looks the same.
UNSURE_GROWTHS = 24
SURE = 0.75
# Without steps the window is cut into so many parts of equal time.
TIME_SLICES = 40
# Of blocks that outlive a few steps so many may be freed after all: those of a leak never are.
_MORTAL = 0.2
# Growth over this share of what survived counts as growth, over less as replacement.
_REAL = 0.5
MAX_SLOPE_STEPS = 400
# Of what is allocated at step ends so much must be a block that is replaced by larger ones.
_WORTH = 0.02

KINDS = ("leak", "unsure", "cache_bounded", "freed_late", "warm_up", "one_off")


@dataclass(frozen=True)
class Leaks:
    """What grows, and what only looks so.

    Attributes:
        judged: False where the steps are too few, and no times are recorded either.
        source: what the boundaries are: the source of the steps, or ``equal parts of time``.
        steps: number of steps looked at, after warm-up.
        warm_up: steps that belong to it.
        table: one row per leaking site, by requested bytes: ``site``, ``file``, ``line``, ``function``,
            ``bytes_per_step`` (requested), ``block_bytes_per_step`` (occupied), ``blocks_per_step``, ``steps``,
            ``total`` (requested bytes of the survivors), ``confidence`` (0 to 1), ``stack``, ``code`` (number of the
            site), ``period`` (steps between growths), ``first_event`` and ``last_event`` (allocation of the first and
            last survivor), ``freed`` (survivors' siblings that were freed), ``freed_at`` (the line that freed most of
            them, empty if none or unknown).
        retained: sites that kept blocks of several steps, but do not leak: ``site``, ``kind`` (of ``KINDS``),
            ``requested`` (of the survivors), ``blocks``, ``code``; the largest first.
        boundaries: event at each step's end.
        live: requested bytes at each boundary, one row per row of ``table``.
        births: blocks that survive by the step of their allocation, one row per row of ``table``.

    """

    judged: bool
    source: str
    steps: int
    warm_up: int
    table: pd.DataFrame
    retained: pd.DataFrame
    boundaries: IntArray
    live: IntArray
    births: IntArray


_COLUMNS = (
    "site",
    "file",
    "line",
    "function",
    "bytes_per_step",
    "block_bytes_per_step",
    "blocks_per_step",
    "steps",
    "total",
    "confidence",
    "stack",
    "code",
    "period",
    "first_event",
    "last_event",
    "freed",
    "freed_at",
)
_RETAINED = ("site", "kind", "requested", "blocks", "code")


def leaks(snapshot: Snapshot, device: int, steps: Steps) -> Leaks:
    """Find sites whose live bytes grow over the steps after warm-up.

    Args:
        snapshot: the file.
        device: ordinal.
        steps: as of ``steps``; without any the window is cut into equal parts of time.

    """
    boundaries = np.asarray(steps.table["end_event"].to_numpy(), dtype=np.int64)
    source, sure = steps.source, steps.confidence
    if not len(boundaries):
        boundaries, source, sure = _slices(snapshot, device), "equal parts of time", 0.5
    if len(boundaries) < MIN_STEPS:
        return _not_judged(steps.source, boundaries)
    lives = _Lives(snapshot, device, boundaries)
    warm = warm_up(lives.total)
    found, kept = [], []
    for code in lives.candidates():
        one = _Site(lives, code, warm, MIN_GROWTHS if sure >= SURE else UNSURE_GROWTHS)
        kind = one.kind()
        if kind == "leak":
            found.append(one)
        elif kind:
            kept.append((one.label, kind, one.survivor_bytes, one.survivor_count, code))
    table = _table(snapshot, device, found, sure)
    order = table.pop("order").to_numpy(dtype=np.int64)
    retained = pd.DataFrame(kept, columns=list(_RETAINED))
    return Leaks(
        judged=True,
        source=source,
        steps=len(boundaries) - warm,
        warm_up=warm,
        table=table,
        retained=retained.sort_values(["requested", "site"], ascending=[False, True], ignore_index=True),
        boundaries=boundaries,
        live=_stacked([found[number].live for number in order], len(boundaries)),
        births=_stacked([found[number].births for number in order], len(boundaries)),
    )


def _stacked(rows: list[IntArray], width: int) -> IntArray:
    return np.array(rows, dtype=np.int64).reshape(len(rows), width)


def _not_judged(source: str, boundaries: IntArray) -> Leaks:
    nothing = np.zeros((0, len(boundaries)), dtype=np.int64)
    table, retained = pd.DataFrame(columns=list(_COLUMNS)), pd.DataFrame(columns=list(_RETAINED))
    return Leaks(False, source, len(boundaries), 0, table, retained, boundaries, nothing, nothing)


def _slices(snapshot: Snapshot, device: int) -> IntArray:
    """Cut the window into parts of equal time; none where times are not recorded."""
    times = snapshot.replay[device].events["time_us"].to_numpy()
    if len(times) < 10 * TIME_SLICES or int(times[0]) < 0:
        return np.zeros(0, dtype=np.int64)
    cuts = np.linspace(int(times[0]), int(times[-1]), TIME_SLICES + 1)[1:]
    return np.unique(np.searchsorted(times, cuts, side="right") - 1).astype(np.int64)


def warm_up(total: IntArray) -> int:
    """Find how many steps warm-up takes, from what is allocated at each step's end.

    Its steps differ from the usual change of the later ones: they make optimizer state, workspaces, caches. It takes
    at most a third of the steps, and at least one, of more than five two.
    """
    count = len(total)
    least = 1 if count <= STRICT_STEPS else 2
    change = np.diff(total)
    late = change[len(change) // 2 :]
    usual = float(np.median(late))
    spread = 3 * float(np.median(np.abs(late - usual))) + 0.002 * float(total.max(initial=1))
    odd = np.flatnonzero(np.abs(change[: count // 3] - usual) > spread)
    return max(least, int(odd[-1]) + 1 if len(odd) else 0)


class _Lives:
    """All allocations of a device by site and step."""

    def __init__(self, snapshot: Snapshot, device: int, boundaries: IntArray) -> None:
        self.frame = snapshot.replay[device].allocations
        self.boundaries = boundaries
        self.count = len(boundaries)
        self.codes = site_codes(snapshot, self.frame)
        self.sites = site_list(snapshot)
        self.requested = self.frame["requested"].to_numpy()
        self.size = self.frame["size"].to_numpy()
        # Step of birth and of death: the one whose end is the first at or after it; `count` is after the last.
        self.birth = np.searchsorted(boundaries, self.frame["alloc"].to_numpy(), side="left")
        freed = self.frame["free_requested"].to_numpy()
        self.death = np.where(freed == -1, self.count, np.searchsorted(boundaries, freed, side="left"))
        self.survives = (self.birth < self.count) & (self.death == self.count)
        order = np.argsort(self.codes, kind="stable")
        self._order = order
        self._first = np.searchsorted(self.codes[order], np.arange(len(self.sites) + 1))

    def rows(self, code: int) -> IntArray:
        """Give the rows of a site, in order of their allocation."""
        return self._order[self._first[code] : self._first[code + 1]]

    @cached_property
    def total(self) -> IntArray:
        """Sum occupied bytes at each boundary."""
        return self.alive(np.arange(len(self.frame)), self.size)

    def alive(self, rows: IntArray, weight: IntArray) -> IntArray:
        """Sum ``weight`` of the rows' allocations that are alive at each boundary."""
        delta = np.zeros(self.count + 1, dtype=np.int64)
        seen = rows[self.death[rows] > self.birth[rows]]
        np.add.at(delta, self.birth[seen], weight[seen])
        np.subtract.at(delta, self.death[seen], weight[seen])
        return np.cumsum(delta)[:-1]

    def candidates(self) -> list[int]:
        """Give the sites with survivors."""
        alive = np.flatnonzero(self.survives & (self.frame["alloc"].to_numpy() >= 0))
        return [int(code) for code in np.unique(self.codes[alive])]


class _Site:
    """One site over the steps."""

    def __init__(self, lives: _Lives, code: int, warm: int, least: int) -> None:
        self.lives = lives
        self.least = least
        self.code = code
        self.warm = warm
        self.site = lives.sites[code]
        self.label = self.site.label
        self.rows = lives.rows(code)
        self.survivors = self.rows[lives.survives[self.rows]]
        # What the last step made is still in use, as is what is usually freed some steps later; what warm-up made is
        # expected.
        birth = lives.birth[self.survivors]
        self.life = self._usual_life()
        self.end = lives.count - 1 - min(self.life, (lives.count - warm) // 3)
        self.late = self.survivors[(birth >= warm) & (birth < self.end)]
        self.births = np.bincount(birth, minlength=lives.count)[: lives.count]
        self.live = lives.alive(self.rows, lives.requested)
        self.hits = np.flatnonzero(self.births[: self.end])
        self.hits = self.hits[self.hits >= warm]
        self.survivor_bytes = int(lives.requested[self.survivors].sum())
        self.survivor_count = len(self.survivors)

    def _usual_life(self) -> int:
        """Give the steps that nearly all of the site's blocks live, of those that are freed; 0 without any."""
        birth, death = self.lives.birth[self.rows], self.lives.death[self.rows]
        dead = (death < self.lives.count) & (birth >= self.warm)
        return int(np.quantile((death - birth)[dead], 0.95)) if dead.any() else 0

    @property
    def period(self) -> int:
        """Steps between growths, usually."""
        return int(np.median(np.diff(self.hits))) if len(self.hits) > 1 else 1

    def kind(self) -> str:
        """Judge the site: one of ``KINDS``; empty for one that is not worth a word."""
        if self.lives.count < STRICT_STEPS:
            return "leak" if self._grows_evenly() else ""
        if len(self.hits) < self.least:
            return "leak" if self.least == MIN_GROWTHS and self._replaced_by_larger() else self._few()
        if not self._recent():
            return "cache_bounded"
        if self._mortal() > _MORTAL:
            return "freed_late"
        return "leak" if self._regular() and self._grows() else "cache_bounded"

    def _replaced_by_larger(self) -> bool:
        """Whether one block after the other takes its predecessor's place, each larger, as a history that is joined."""
        tail = self.live[self.warm :]
        if len(tail) < 6 or int(tail[0]) <= 0:
            return False
        growth = np.diff(tail)
        thirds = [float(part.sum()) for part in np.array_split(growth, 3)]
        steady = min(thirds) >= 0.5 * float(np.mean(thirds)) > 0
        grows = steady and float((growth > 0).mean()) >= 0.9 and int(tail[-1]) >= 1.25 * int(tail[0])
        # An input that is kept until the next, larger one takes its place is no history.
        return grows and int(tail[-1]) - int(tail[0]) >= _WORTH * int(self.lives.total.max())

    def _few(self) -> str:
        if len(self.hits) >= MIN_GROWTHS and self._recent() and self._regular() and self._mortal() <= _MORTAL:
            return "unsure" if self._grows() else "cache_bounded"
        if self._mortal() > _MORTAL or (self.life > 1 and not len(self.hits)):
            return "freed_late"
        if len(self.hits):
            return "one_off"
        return "warm_up" if (self.births[: self.warm] > 0).sum() > 1 else ""

    def _recent(self) -> bool:
        """Whether it goes on to the end: the last growth is no further back than two periods."""
        return self.end - 1 - int(self.hits[-1]) <= 2 * self.period

    def _regular(self) -> bool:
        gaps = np.diff(self.hits)
        return int(gaps.max()) <= max(3 * self.period, self.period + 2)

    def _mortal(self) -> float:
        """Give the share of blocks that lived past a few steps and were freed after all."""
        birth, death = self.lives.birth[self.rows], self.lives.death[self.rows]
        few = max(2, self.period, self.life)
        judged = (birth >= self.warm) & (birth < self.lives.count - 1 - few)
        old = judged & (death - birth > few)
        freed = old & (death < self.lives.count)
        return float(freed.sum()) / max(int(old.sum()), 1)

    def _grows(self) -> bool:
        """Whether live bytes rise by what survives, and at the end as at the beginning: no replacement, no filling."""
        start = int(self.hits[0])
        before = float(np.median(self.live[self.warm - 1 : start])) if start >= self.warm else 0.0
        before = float(self.live[max(start - 1, 0)]) if start <= self.warm else before
        tail = self.live[start:]
        window = max(2, self.period)
        added = np.bincount(
            self.lives.birth[self.late], weights=self.lives.requested[self.late], minlength=self.lives.count
        )
        gained = float(added[start:].sum())
        if gained <= 0 or float(tail[-window:].min()) - before < _REAL * gained:
            return False
        thirds = np.array_split(added[start : int(self.hits[-1]) + self.period], 3)
        means = [float(part.mean()) for part in thirds if len(part)]
        return means[-1] >= 0.5 * float(np.mean(means))

    def _grows_evenly(self) -> bool:
        """Judge over very few steps: each of them leaves blocks behind, and adds the same bytes."""
        growth = np.diff(self.live)
        after = self.births[1:]
        return bool((after > 0).all() and growth[0] > 0 and (growth == growth[0]).all())

    def per_step(self) -> tuple[float, float, float]:
        """Give requested bytes, occupied bytes and blocks that a step leaves behind: medians, over the period."""
        if self.lives.count < STRICT_STEPS or len(self.hits) < MIN_GROWTHS:
            occupied = self.lives.alive(self.rows, self.lives.size)
            count = self.lives.alive(self.rows, np.ones(len(self.lives.frame), dtype=np.int64))
            tail = self.warm if self.lives.count >= STRICT_STEPS else 0
            return robust_slope(self.live[tail:]), robust_slope(occupied[tail:]), robust_slope(count[tail:])
        gap = (int(self.hits[-1]) - int(self.hits[0])) / (len(self.hits) - 1)
        birth = self.lives.birth[self.late]
        sums = (
            np.bincount(birth, weights=weight, minlength=self.lives.count)[self.hits]
            for weight in (self.lives.requested[self.late], self.lives.size[self.late], np.ones(len(self.late)))
        )
        requested, size, blocks = (float(np.median(values)) / gap for values in sums)
        return requested, size, blocks

    def confidence(self) -> float:
        """Say how sure it is: how many of the growths came when they were due, fewer steps count less."""
        if self.lives.count < STRICT_STEPS or len(self.hits) < MIN_GROWTHS:
            return 0.5
        due = (int(self.hits[-1]) - int(self.hits[0])) / self.period + 1
        return min(1.0, len(self.hits) / due) * min(1.0, 0.5 + len(self.hits) / 12)


def robust_slope(values: IntArray) -> float:
    """Median of the slopes between all pairs of points (Theil and Sen), per step."""
    step = -(-len(values) // MAX_SLOPE_STEPS)
    thin = values[::step].astype(np.float64)
    left, right = np.triu_indices(len(thin), k=1)
    return float(np.median((thin[right] - thin[left]) / (right - left))) / step


def _table(snapshot: Snapshot, device: int, found: list[_Site], sure: float) -> pd.DataFrame:
    rows = []
    for number, one in enumerate(found):
        requested, size, blocks = one.per_step()
        after = one.survivors[one.lives.birth[one.survivors] >= one.warm]
        born = one.lives.frame["alloc"].to_numpy()[after]
        stacks = one.lives.frame["stack"].to_numpy()[after]
        freed, freed_at = _usual_end(snapshot, device, one)
        rows.append(
            (
                one.label,
                one.site.file,
                one.site.line,
                one.site.function,
                requested,
                size,
                blocks,
                one.lives.count - one.warm,
                int(one.lives.requested[after].sum()),
                round(one.confidence() * sure, 2),
                int(pd.Series(stacks).mode().iloc[0]) if len(stacks) else -1,
                one.code,
                one.period,
                int(born.min()) if len(born) else -1,
                int(born.max()) if len(born) else -1,
                freed,
                freed_at,
                number,
            )
        )
    table = pd.DataFrame(rows, columns=[*_COLUMNS, "order"])
    return table.sort_values(["bytes_per_step", "site"], ascending=[False, True], ignore_index=True)


def _usual_end(snapshot: Snapshot, device: int, one: _Site) -> tuple[int, str]:
    """Say how many of the site's blocks were freed, and by which line most of them; "" where that is not recorded."""
    freed = one.lives.frame["free_requested"].to_numpy()[one.rows]
    events = snapshot.replay[device].events["stack"].to_numpy()
    mine = freed[freed >= 0]
    stacks = events[mine]
    own = one.lives.frame["stack"].to_numpy()[one.rows][freed >= 0]
    # Where only allocations have a context, frees carry that of the allocation.
    told = (stacks >= 0) & (stacks != own)
    if not told.any():
        return len(mine), ""
    return len(mine), snapshot.stacks.site(int(pd.Series(stacks[told]).mode().iloc[0])).label
