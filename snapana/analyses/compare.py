"""Two runs side by side: what grew, what shrank, by which lines, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.categories import ACTIVATIONS, GRADIENTS, INPUTS, OPTIMIZER, PARAMETERS
from snapana.analyses.matching import match_sites, moved
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.phases import checkpoints
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes, site_list
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes

IntArray = npt.NDArray[np.int64]

# From here on allocated and reserved are said to move apart (shares of the base).
APART = 0.05
# Sizes so near to a common ratio follow the batch.
_NEAR = 0.02
# So much of the activations must agree on the batch, and no batch is more times another.
_AGREEING = 0.6
_MOST = 64
# Peaks nearer to each other (as a share) count as the same.
_SAME = 0.005


@dataclass(frozen=True)
class Side:
    """One run of the two.

    Attributes:
        results: what was analysed.
        device: the device that is compared.
        name: of the file, with as much of its path as tells it from the other.

    """

    results: Overview
    device: DeviceOverview
    name: str

    @property
    def snapshot(self) -> Snapshot:
        """The model of the file."""
        return self.results.snapshot


@dataclass(frozen=True)
class Comparison:
    """Two runs, of which the first is the base.

    Attributes:
        base: the first.
        other: the second.
        peak_allocated: bytes of difference; likewise ``end_allocated``.
        peak_reserved: bytes of difference; None where a side does not know; likewise ``peak_requested``.
        sites: one row per line of code alive at either peak, largest difference first: ``site`` (as in the other run
            if it is there), ``base_site`` (as in the base; empty for a new one), ``file``, ``line``, ``function``,
            ``category``, ``base_bytes``, ``other_bytes``, ``delta`` (bytes), ``base_blocks``, ``other_blocks``,
            ``base_largest``, ``other_largest`` (bytes asked for of the largest block), ``status`` (``same``, ``moved``,
            ``new``, ``gone``), ``why``, ``base_code``, ``other_code``. Σ ``delta`` is ``peak_allocated``.
        categories: one row per category: ``category``, ``base_bytes``, ``other_bytes``, ``delta``; they sum likewise.
        settings: settings that differ: name, base, other.
        batch: how many times as large the batch of the other run looks; None if nothing says so.
        notes: what else differs, and what makes the two hard to compare.

    """

    base: Side
    other: Side
    peak_allocated: int
    peak_reserved: int | None
    peak_requested: int | None
    end_allocated: int
    sites: pd.DataFrame
    categories: pd.DataFrame
    settings: tuple[tuple[str, str, str], ...]
    batch: float | None
    notes: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether nothing differs that is compared."""
        deltas = (self.peak_allocated, self.peak_reserved, self.peak_requested, self.end_allocated)
        same = not any(deltas) and not self.sites["delta"].any() and not self.settings
        left, right = (_traffic(side.device) for side in (self.base, self.other))
        return same and left == right

    @property
    def apart(self) -> str:
        """Say that allocated and reserved move apart, if they do by more than 5% of the base."""
        allocated, reserved = self._shares()
        if allocated is None or reserved is None or abs(reserved - allocated) <= APART or not self.whole:
            return ""
        if abs(allocated) < _SAME:
            means = f"the same tensors take {'more' if reserved > 0 else 'less'}"
        elif allocated * reserved < 0:
            means = "the card holds more, not less" if reserved > 0 else "more fits into less"
        elif reserved > allocated:
            grows = "the cache grows faster than what is in it"
            means = grows if allocated > 0 else "part of what was freed stays reserved"
        else:
            means = "the cache is filled better"
        return f"allocated {percent(allocated)}, reserved {percent(reserved)}: {means}"

    @property
    def looser(self) -> bool:
        """Whether reserved moved up against allocated, by more than 5% of the base."""
        allocated, reserved = self._shares()
        return allocated is not None and reserved is not None and reserved - allocated > APART and self.whole

    @property
    def peaks_known(self) -> bool:
        """Whether both files have events, so that their peaks are known at all."""
        return all(side.device.coverage.events for side in (self.base, self.other))

    @property
    def whole(self) -> bool:
        """Whether neither window was cut: a peak may lie before one that was."""
        return self.peaks_known and not any(
            side.device.coverage.unmatched_frees and side.results.trace is None for side in (self.base, self.other)
        )

    def _shares(self) -> tuple[float | None, float | None]:
        base, reserved = self.base.device.peak.allocated, self.base.device.peak_reserved
        return (
            self.peak_allocated / base if base else None,
            self.peak_reserved / reserved if reserved and self.peak_reserved is not None else None,
        )


def fullest_device(results: Overview) -> DeviceOverview:
    """Give the device with the highest peak; GPUs go before the CPU.

    Raises:
        SnapanaError: ``compare.nothing`` for a file without devices.

    """
    if not results.devices:
        raise SnapanaError("compare.nothing", f"{results.snapshot.info.name} says nothing of any device.")
    return max(results.devices, key=lambda one: (one.device >= 0, one.peak.allocated, -one.device))


def compare(
    base: Overview, other: Overview, names: tuple[str, str] | None = None, device: int | None = None
) -> Comparison:
    """Compare one device of two runs.

    Args:
        base: the first.
        other: the second.
        names: what to call them; by default their files' names.
        device: ordinal; by default the fullest of the second run. In the first it is that of the same ordinal, or the
            fullest where there is none.

    Raises:
        SnapanaError: ``compare.nothing`` where a file says nothing of any device.

    """
    called = names or (base.snapshot.info.name, other.snapshot.info.name)
    yours = next((one for one in other.devices if one.device == device), None) or fullest_device(other)
    mine = next((one for one in base.devices if one.device == yours.device), None) or fullest_device(base)
    left, right = Side(base, mine, called[0]), Side(other, yours, called[1])
    sites = _sites(left, right)
    return Comparison(
        base=left,
        other=right,
        peak_allocated=yours.peak.allocated - mine.peak.allocated,
        peak_reserved=_less(yours.peak_reserved, mine.peak_reserved),
        peak_requested=_less(yours.peak.requested, mine.peak.requested),
        end_allocated=yours.end.allocated - mine.end.allocated,
        sites=sites,
        categories=_categories(mine, yours),
        settings=_settings(left.snapshot, right.snapshot),
        batch=_batch(sites),
        notes=tuple(_notes(left, right)),
    )


def _less(value: int | None, base: int | None) -> int | None:
    return None if value is None or base is None else value - base


# ---- sites


def _sites(base: Side, other: Side) -> pd.DataFrame:
    """Lay the sites of both peaks beside each other."""
    pairs = match_sites(base.snapshot, other.snapshot)
    back = {theirs: own for own, theirs in pairs.items()}
    names = site_list(base.snapshot), site_list(other.snapshot)
    tables = [side.device.peak.sites.set_index("code") for side in (base, other)]
    rates = [_made_per_step(side) for side in (base, other)]
    known = set(tables[0].index.tolist())
    alive: list[tuple[int, int]] = [(code, pairs.get(code, -1)) for code in tables[0].index.tolist()]
    alive += [(back.get(code, -1), code) for code in tables[1].index.tolist() if back.get(code, -1) not in known]
    same_settings = base.snapshot.settings == other.snapshot.settings
    found = []
    for own, theirs in alive:
        mine, yours = _figures(tables[0], own), _figures(tables[1], theirs)
        shown = names[1][theirs] if theirs >= 0 else names[0][own]
        if own < 0 or theirs < 0:
            status = "new" if own < 0 else "gone"
        else:
            status = "moved" if moved(names[0][own], names[1][theirs]) else "same"
        category = yours.category if yours.blocks else mine.category
        row = {
            "site": shown.label,
            "base_site": names[0][own].label if own >= 0 else "",
            "file": shown.file,
            "line": shown.line,
            "function": shown.function,
            "category": CATEGORIES[category] if category >= 0 else "",
            "base_bytes": mine.bytes,
            "other_bytes": yours.bytes,
            "delta": yours.bytes - mine.bytes,
            "base_blocks": mine.blocks,
            "other_blocks": yours.blocks,
            "base_largest": mine.largest,
            "other_largest": yours.largest,
            "status": status,
            "why": _why(mine, yours, rates[0].get(own), rates[1].get(theirs), same_settings),
            "base_code": own,
            "other_code": theirs,
        }
        found.append(row)
    table = pd.DataFrame(found, columns=list(_COLUMNS))
    order = np.lexsort((table["site"].astype(str).to_numpy(), -table["delta"].abs().to_numpy(dtype=np.int64)))
    return table.iloc[order].reset_index(drop=True)


_COLUMNS = (
    "site",
    "base_site",
    "file",
    "line",
    "function",
    "category",
    "base_bytes",
    "other_bytes",
    "delta",
    "base_blocks",
    "other_blocks",
    "base_largest",
    "other_largest",
    "status",
    "why",
    "base_code",
    "other_code",
)


@dataclass(frozen=True)
class _Figures:
    """A site at a peak: bytes, bytes asked for, blocks, the largest block asked for, the category."""

    bytes: int = 0
    requested: int = 0
    blocks: int = 0
    largest: int = 0
    category: int = -1

    @property
    def mean(self) -> float:
        return self.requested / self.blocks if self.blocks else 0.0


def _figures(sites: pd.DataFrame, code: int) -> _Figures:
    if code not in sites.index:
        return _Figures()
    one = sites.loc[[code]]
    return _Figures(*(int(one[name].iloc[0]) for name in ("bytes", "requested", "blocks", "largest", "category")))


def _made_per_step(side: Side) -> dict[int, float]:
    """Count how many blocks each site makes a step, over the whole window where there are no steps."""
    lives = side.snapshot.replay[side.device.device].allocations
    table = side.device.steps.table
    born = lives["alloc"].to_numpy()
    codes = site_codes(side.snapshot, lives)
    inside = born >= 0
    count = 1
    if len(table) > 1:
        # The first step builds what the others reuse.
        first = int(table["end_event"].iloc[0])
        inside, count = born > first, len(table) - 1
    numbers, sums = np.unique(codes[inside], return_counts=True)
    return {int(number): float(total) / count for number, total in zip(numbers.tolist(), sums.tolist(), strict=True)}


def _why(
    base: _Figures, other: _Figures, base_rate: float | None, other_rate: float | None, same_settings: bool
) -> str:
    """Say what makes up the difference of a site."""
    if base.bytes == other.bytes:
        return ""
    bytes_delta, requested_delta = other.bytes - base.bytes, other.requested - base.requested
    if (base.requested, base.blocks) == (other.requested, other.blocks) or (
        base.blocks and other.blocks and bytes_delta * requested_delta <= 0
    ):
        # What was asked for does not explain it.
        return "fragmentation only" if same_settings else "settings"
    if base.blocks == other.blocks:
        return "larger blocks" if other.mean > base.mean else "smaller blocks"
    more = other.blocks > base.blocks
    lives = base_rate is not None and other_rate is not None and abs(other_rate - base_rate) <= 0.05 * base_rate
    counts = ("lives longer" if more else "lives shorter") if lives else ("more blocks" if more else "fewer blocks")
    if not base.blocks or not other.blocks or abs(other.mean - base.mean) <= _NEAR * base.mean:
        return counts
    # The difference splits into that of the counts and that of the sizes; the larger share comes first.
    by_count = (other.blocks - base.blocks) * base.mean
    by_size = other.blocks * (other.mean - base.mean)
    sizes = "larger blocks" if by_size > 0 else "smaller blocks"
    if abs(by_size) > 4 * abs(by_count):
        return sizes
    if abs(by_count) > 4 * abs(by_size):
        return counts
    return f"{counts}, {sizes}" if abs(by_count) >= abs(by_size) else f"{sizes}, {counts}"


def _batch(sites: pd.DataFrame) -> float | None:
    """Tell the ratio of the batches, where most activations and inputs of both peaks are of lines that have it."""
    kinds = [CATEGORIES[ACTIVATIONS], CATEGORIES[INPUTS]]
    own = sites[sites["category"].isin(kinds) & (sites["function"] != "")]
    both = own[(own["base_bytes"] > 0) & (own["other_bytes"] > 0)]
    if len(both) < 2:
        return None
    ratio = both["other_largest"].to_numpy() / both["base_largest"].to_numpy()
    weight = both["base_bytes"].to_numpy(dtype=np.float64)
    order = np.argsort(ratio, kind="stable")
    middle = float(ratio[order][int(np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2))])
    near = np.abs(ratio - middle) <= _NEAR * middle
    shares = [both[name].to_numpy()[near].sum() / max(own[name].sum(), 1) for name in ("base_bytes", "other_bytes")]
    if near.sum() < 2 or min(shares) < _AGREEING or abs(middle - 1) <= _NEAR or not 1 / _MOST <= middle <= _MOST:
        return None
    return middle


# ---- everything else


def _categories(base: DeviceOverview, other: DeviceOverview) -> pd.DataFrame:
    left, right = base.categories.bytes, other.categories.bytes
    return pd.DataFrame(
        [(name, left[name], right[name], right[name] - left[name]) for name in CATEGORIES],
        columns=["category", "base_bytes", "other_bytes", "delta"],
    )


def _settings(base: Snapshot, other: Snapshot) -> tuple[tuple[str, str, str], ...]:
    """List the settings that differ; what only their spelling does not."""
    if not base.has_settings or not other.has_settings:
        return ()
    pairs = (
        ("expandable_segments", base.settings.expandable_segments, other.settings.expandable_segments),
        ("max_split_size", base.settings.max_split_size, other.settings.max_split_size),
        (
            "garbage_collection_threshold",
            base.settings.garbage_collection_threshold,
            other.settings.garbage_collection_threshold,
        ),
        (
            "roundup_power2_divisions",
            base.settings.roundup_power2_divisions,
            other.settings.roundup_power2_divisions,
        ),
    )
    return tuple((name, _setting(mine), _setting(yours)) for name, mine, yours in pairs if mine != yours)


def _setting(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{2**slot}:{count}" for slot, count in enumerate(value) if count > 1) or "off"
    if value is None:
        return "no limit"
    if isinstance(value, int) and not isinstance(value, bool):
        return format_bytes(value)
    return str(value)


def _notes(base: Side, other: Side) -> list[str]:
    said = []
    if base.device.device != other.device.device:
        said.append(
            f"Device {base.device.device} of {base.name} is held against {other.device.device} of {other.name}."
        )
    for side in (base, other):
        if not side.device.coverage.complete:
            said.append(f"{side.name} does not cover its whole run: what was before it may differ too.")
        others = [one.device for one in side.results.devices if one.device >= 0 and one.device != side.device.device]
        if others and side.device.device >= 0:
            named = ", ".join(map(str, others))
            said.append(f"Of {side.name} device {side.device.device} is compared; --device names another: {named}.")
        if side.results.trace is not None:
            said.append(f"{side.name} is a profiler trace: it does not tell segments, settings and pools.")
    return said


def _traffic(device: DeviceOverview) -> tuple[int, int] | None:
    return None if device.space is None else (device.space.churn.segment_allocs, device.space.churn.segment_frees)


def _leaked(side: Side) -> float:
    return float(side.device.leaks.table["bytes_per_step"].sum()) if side.device.leaks.judged else 0.0


def behaviour(base: Side, other: Side) -> list[str]:
    """Say what one of the two does and the other does not: leaks, ``empty_cache()``, activation checkpointing."""
    said = []
    for side, beside in ((base, other), (other, base)):
        own, theirs = _leaked(side), _leaked(beside)
        if own > theirs:
            first = side.device.leaks.table["site"].iloc[0]
            more = f" instead of {format_bytes(theirs)}" if theirs else ""
            said.append(f"{side.name} leaks {format_bytes(own)} a step{more}, most of it by {first}")
        if side.device.space is not None and beside.device.space is not None:
            mine, yours = side.device.space.churn, beside.device.space.churn
            if mine.empty_cache_calls and not yours.empty_cache_calls:
                line = f"{side.name} calls empty_cache() {mine.empty_cache_calls:,} times"
                if mine.per_step is not None and yours.per_step is not None:
                    line += f" and makes {mine.per_step:.3g} segments a step instead of {yours.per_step:.3g}"
                said.append(line)
        if checkpoints(side.snapshot) and not checkpoints(beside.snapshot):
            said.append(f"{side.name} uses activation checkpointing")
    return said


# ---- the verdict


def verdict_lines(found: Comparison) -> list[str]:
    """Say in two lines or less how the other run differs, most important first."""
    if found.identical:
        return ["No difference."]
    lines = [_allocated_line(found)]
    second = [part for part in (_reserved_part(found), found.apart) if part]
    if found.settings:
        second.append("settings differ: " + ", ".join(f"{name} {yours}" for name, _, yours in found.settings))
    second += behaviour(found.base, found.other)
    if second:
        joined = "; ".join(second)
        lines.append(joined[0].upper() + joined[1:] + ".")
    return lines


def _allocated_line(found: Comparison) -> str:
    delta, base = found.peak_allocated, found.base.device.peak.allocated
    name = found.other.name
    much = format_bytes(abs(delta))
    if not found.peaks_known:
        side = found.other if not found.other.device.coverage.events else found.base
        return f"{side.name} holds a final state only: its peak is not known, and what follows compares other instants."
    if not delta:
        return f"{name} peaks where {found.base.name} does, to the byte, at {format_bytes(base)} allocated."
    if abs(delta) <= _SAME * base:
        more = f"{much} {'more' if delta > 0 else 'less'}, {percent(delta / base)}"
        return f"{name} allocates the same as {found.base.name} but for a little ({more})."
    share = f" ({percent(delta / base)})" if base else ""
    where = "" if found.whole else "Within what was recorded, of which a part is lost, "
    parts = [f"{where}{name} peaks {much} {'higher' if delta > 0 else 'lower'}{share}"]
    where = _where(found)
    if where:
        parts.append(where)
    line = ", ".join(parts)
    if found.batch is not None:
        line += f"; the batch looks {times(found.batch)}"
    return line + "."


def percent(share: float) -> str:
    """Write a signed share: ``+12%``, ``-0.2%``, ``unchanged``."""
    if abs(share) < 0.0005:
        return "unchanged"
    return f"{share:+.1%}" if abs(share) < 0.0995 else f"{share:+.0%}"


def _where(found: Comparison) -> str:
    """Name the category, and the function, that most of the difference is in."""
    delta = found.peak_allocated
    table = found.categories.assign(share=found.categories["delta"] / delta)
    top = table.sort_values("share", ascending=False, kind="stable").iloc[0]
    if top["share"] < 0.3:
        return ""
    share = float(top["share"])
    kind = str(top["category"])
    size = int(top["delta"])
    # Where others shrank, one grows by more than the whole.
    text = f"{share:.0%} of it in" if share <= 1.005 else f"{'+' if size > 0 else ''}{format_bytes(size)} of"
    text = f"{text} {_WORDS.get(kind, kind)}"
    own = found.sites[found.sites["category"] == kind]
    functions = (
        own[own["function"] != ""].groupby(["file", "function"])["delta"].sum() / (share * delta)
    ).sort_values()
    if len(functions) and float(functions.iloc[-1]) >= 0.25:
        part, (_, function) = float(functions.iloc[-1]), functions.index[-1]
        return f"{text}{'' if part > 0.95 else f', {part:.0%} of that'} of `{function}`"
    if kind == CATEGORIES[GRADIENTS] and delta > 0 and 2 * int(top["base_bytes"]) < int(top["other_bytes"]):
        return f"{text}, which are alive at its peak, as with accumulation"
    return text


_WORDS = {
    CATEGORIES[OPTIMIZER]: "optimizer state",
    CATEGORIES[GRADIENTS]: "gradients",
    CATEGORIES[PARAMETERS]: "parameters",
    CATEGORIES[ACTIVATIONS]: "activations",
    CATEGORIES[INPUTS]: "inputs",
}


def times(ratio: float) -> str:
    """Write a ratio in words: ``four times as large``, ``half as large``, ``1.50 times as large``."""
    words = {2: "twice", 3: "three times", 4: "four times", 8: "eight times", 16: "sixteen times"}
    near = round(ratio)
    if near in words and abs(ratio - near) <= _NEAR * near:
        return f"{words[near]} as large"
    parts = {2: "half", 3: "a third", 4: "a quarter", 8: "an eighth", 16: "a sixteenth"}
    inverse = 1 / ratio
    near = round(inverse)
    if near in parts and abs(inverse - near) <= _NEAR * near:
        return f"{parts[near]} as large"
    return f"{ratio:.2f} times as large"


def _reserved_part(found: Comparison) -> str:
    delta, base = found.peak_reserved, found.base.device.peak_reserved
    if delta is None or base is None or not found.peaks_known:
        return ""
    if not delta:
        return f"reserved is the same, {format_bytes(base)}"
    share = f" ({percent(delta / base)})" if base else ""
    return f"reserved peaks {format_bytes(abs(delta))} {'higher' if delta > 0 else 'lower'}{share}"
