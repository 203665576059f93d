"""Which line of one recording is which of another, though the program was edited in between."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from snapana.analyses.sites import site_list
from snapana.snapshot.model import Snapshot
from snapana.snapshot.stacks import Site


@dataclass(frozen=True)
class _Place:
    """A site, its number, and what was called below it: functions only, which edits of other lines leave alone."""

    number: int
    site: Site
    below: frozenset[tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.site.file.replace("\\", "/").rsplit("/", 1)[-1]


def match_sites(base: Snapshot, other: Snapshot) -> dict[int, int]:
    """Pair sites of two recordings.

    A site is found again in the function of its name in the same file, at the line that is nearest once most lines of
    the function are in place; else in a file of the same name elsewhere; else in a function, or a file, of another name
    that calls the same. Sites without a line are paired by their label.

    Returns:
        Number of the site in ``other`` by that in ``base``, as ``site_codes`` counts.

    """
    left, right = _places(base), _places(other)
    found: dict[int, int] = {}
    keys: tuple[Callable[[_Place], Hashable], ...] = (
        lambda place: (place.site.file, place.site.function),
        lambda place: (place.name, place.site.function),
    )
    for key in keys:
        _match(left, right, key, found, alike=False)
    # Names changed: only what a whole function calls tells.
    _match(left, right, lambda place: place.name, found, alike=True)
    _match(left, right, lambda place: place.site.function, found, alike=True)
    return found


def moved(base: Site, other: Site) -> bool:
    """Whether a site stands elsewhere than before."""
    return (base.file, base.line, base.function) != (other.file, other.line, other.function)


def _places(snapshot: Snapshot) -> list[_Place]:
    sites = site_list(snapshot)
    below: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    for stack, code in enumerate(snapshot.stacks.site_table[1]):
        site = sites[code]
        inner = []
        for name, filename, line, kind in snapshot.stacks.frames_of(stack):
            if (filename, line, name) == (site.file, site.line, site.function):
                break
            if kind not in {"cpp", "unwinder"}:
                inner.append(name)
        below[code].add(tuple(inner))
    return [
        # What has no line is known by its label alone.
        _Place(code, site if site.file else Site(site.label, site.label, 0, "", site.kind), frozenset(below[code]))
        for code, site in enumerate(sites)
    ]


def _match(
    left: list[_Place],
    right: list[_Place],
    key: Callable[[_Place], Hashable],
    found: dict[int, int],
    *,
    alike: bool,
) -> None:
    """Pair what is left of two recordings within groups of one key; ``alike`` functions must call the same."""
    taken = set(found.values())
    first = _groups([place for place in left if place.number not in found], key)
    second = _groups([place for place in right if place.number not in taken], key)
    for name, own in first.items():
        theirs = second.get(name)
        if theirs is None:
            continue
        if not alike:
            found.update(_by_line(own, theirs))
            continue
        for mine, yours in _functions_alike(own, theirs):
            found.update(_by_line(mine, yours))


def _groups(places: list[_Place], key: Callable[[_Place], Hashable]) -> dict[Hashable, list[_Place]]:
    groups: dict[Hashable, list[_Place]] = defaultdict(list)
    for place in places:
        groups[key(place)].append(place)
    return groups


def _functions_alike(own: list[_Place], theirs: list[_Place]) -> list[tuple[list[_Place], list[_Place]]]:
    """Pair functions with as many sites, which call the same, where there is only one of the kind on each side."""

    def kinds(places: list[_Place]) -> dict[Hashable, list[list[_Place]]]:
        found: dict[Hashable, list[list[_Place]]] = defaultdict(list)
        for group in _groups(places, lambda place: (place.site.file, place.site.function)).values():
            found[(len(group), frozenset(place.below for place in group))].append(group)
        return found

    right = kinds(theirs)
    return [
        (groups[0], right[kind][0])
        for kind, groups in kinds(own).items()
        if len(groups) == 1 and len(right.get(kind, ())) == 1 and groups[0][0].site.file
    ]


def _by_line(own: Sequence[_Place], theirs: Sequence[_Place]) -> dict[int, int]:
    """Pair the lines of one function: in order if there are as many, else those nearest after the common shift."""
    own, theirs = (sorted(places, key=lambda place: place.site.line) for places in (own, theirs))
    if len(own) == len(theirs) and all(mine.below & yours.below for mine, yours in zip(own, theirs, strict=True)):
        return {mine.number: yours.number for mine, yours in zip(own, theirs, strict=True)}
    shifts = Counter(yours.site.line - mine.site.line for mine in own for yours in theirs if mine.below & yours.below)
    shift = min(shifts, key=lambda one: (-shifts[one], abs(one)), default=0)
    pairs = sorted(
        (not mine.below & yours.below, abs(yours.site.line - mine.site.line - shift), mine.number, yours.number)
        for mine in own
        for yours in theirs
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, one, another in pairs:
        if one not in found and another not in taken:
            found[one] = another
            taken.add(another)
    return found
