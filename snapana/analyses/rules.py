"""The user's own rules for categories."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from snapana.analyses.spans import innermost
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "workspace", "inputs", "other")
_FIELDS = ("function", "file", "annotation", "compile_context")


@dataclass(frozen=True)
class Rule:
    """One rule: all patterns that it has must be found.

    Attributes:
        category: index of the category.
        function: searched in the functions of the stack.
        file: searched in the files of the stack.
        annotation: searched in the name of the annotation around the allocation.
        compile_context: searched in the event's.

    """

    category: int
    function: re.Pattern[str] | None = None
    file: re.Pattern[str] | None = None
    annotation: re.Pattern[str] | None = None
    compile_context: re.Pattern[str] | None = None


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Read a TOML file of ``[[rule]]`` tables: ``category`` and at least one pattern (a regular expression).

    Raises:
        SnapanaError: ``rules.unreadable``, ``rules.invalid``.

    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SnapanaError("rules.unreadable", f"Cannot read {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SnapanaError("rules.invalid", f"{path} is no TOML: {error}.") from error
    tables = document.get("rule")
    if not isinstance(tables, list) or not tables:
        raise SnapanaError("rules.invalid", f"{path} holds no [[rule]].", "See 'snapana peak --help' for an example.")
    return tuple(_rule(path, number, table) for number, table in enumerate(tables, 1))


def _rule(path: Path, number: int, table: object) -> Rule:
    where = f"{path}, rule {number}"
    if not isinstance(table, dict) or table.get("category") not in CATEGORIES:
        raise SnapanaError("rules.invalid", f"{where} needs a category.", f"One of {', '.join(CATEGORIES)}.")
    unknown = set(table) - {"category", *_FIELDS}
    if unknown:
        raise SnapanaError("rules.invalid", f"{where} has an unknown key {sorted(unknown)[0]!r}.")
    patterns = {}
    for name in _FIELDS:
        if name not in table:
            continue
        try:
            patterns[name] = re.compile(table[name])
        except (re.error, TypeError) as error:
            raise SnapanaError("rules.invalid", f"{where}: {name} is no regular expression ({error}).") from error
    if not patterns:
        raise SnapanaError("rules.invalid", f"{where} has no pattern.", f"Give one of {', '.join(_FIELDS)}.")
    return Rule(CATEGORIES.index(table["category"]), **patterns)


def matches(snapshot: Snapshot, device: int, rules: Sequence[Rule]) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Give category and matching allocations of each rule, the last rule first: the first one is to win."""
    if not rules:
        return
    replay = snapshot.replay[device]
    lives = replay.allocations
    stack, born = lives["stack"].to_numpy(), lives["alloc"].to_numpy()
    spans, names = innermost(snapshot, device)
    context = replay.events["compile_context"]
    for rule in reversed(rules):
        mask = np.ones(len(lives), dtype=bool)
        for pattern, part in ((rule.function, 0), (rule.file, 1)):
            if pattern is not None:
                hits = [
                    any(pattern.search(str(frame[part])) for frame in snapshot.stacks.frames_of(number))
                    for number in range(len(snapshot.stacks.stacks))
                ]
                mask &= np.array([*hits, False], dtype=bool)[stack]
        if rule.annotation is not None:
            hits = [bool(rule.annotation.search(name)) for name in names]
            own = spans[np.maximum(born, 0)] if len(spans) else np.full(len(lives), -1)
            mask &= np.array([*hits, False], dtype=bool)[own] & (born >= 0)
        if rule.compile_context is not None:
            hits = [bool(rule.compile_context.search(str(name))) for name in context.cat.categories]
            own = context.cat.codes.to_numpy()[np.maximum(born, 0)] if len(context) else np.full(len(lives), -1)
            mask &= np.array([*hits, False], dtype=bool)[own] & (born >= 0)
        yield rule.category, mask
