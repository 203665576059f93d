"""Mends traces that are no JSON: what writers are known to get wrong, counted by kind.

Known defects: pytorch issues 146900, 113001, 130622, 136180, 98432; kineto issues 1459, 336.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

_TOP = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# Text is matched first, so that nothing within it is taken for a number.
_BARE = re.compile(r'("(?:[^"\\\\]|\\\\.)*")|(:\s*)-?(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x1f]")
_LONE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_DANGLING = re.compile(r",(\s*[}\]])")
_MISSING = re.compile(r'(["\d}\]el])(\s*\n\s*)(")')
# A key of an event or its arguments, at the beginning of a piece of an object.
_KEY = re.compile(r'(?:^|[{,])\s*"([A-Za-z0-9_ ()/-]{1,40})"\s*:')
_NAME = re.compile(r'"(?:name|Concrete Inputs|Python parent|Call stack|Module Hierarchy)"')


class Repaired:
    """Counts what was mended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, kind: str, times: int = 1) -> None:
        """Add to a kind."""
        self.counts[kind] += times


def repair_top(text: bytes, repaired: Repaired) -> tuple[dict[str, bytes], list[bytes]]:
    """Cut a damaged trace into its events, up to where it ends, and save the metadata that is known.

    Returns:
        Known top-level values by name, and each event's text.

    """
    found: dict[str, bytes] = {}
    start = _EVENTS.search(text)
    if start is None and text.lstrip()[:1] == b"[":
        begin = len(text) - len(text.lstrip()) + 1
    elif start is None:
        return found, []
    else:
        begin = start.end()
    pieces, end = _pieces(text, begin)
    outside = text[:begin] + b" " + text[end : end + 1_000_000]
    for name in _TOP:
        value = re.search(rb'"' + name.encode() + rb'"\s*:\s*', outside)
        if value:
            found[name] = _value(outside, value.end())
    tail = text[end:].lstrip(b" \t\r\n,")
    if not tail.startswith(b"]"):
        repaired.count("cut_tail")
    elif start is None and tail[1:].strip():
        repaired.count("trailing_garbage")
    elif start is not None and tail[1:].strip() and not tail[1:].strip().endswith(b"}"):
        repaired.count("trailing_garbage" if b"}" in tail else "cut_tail")
    return found, pieces


_OPEN = re.compile(rb"[{\]]")
_INSIDE = re.compile(rb'["{}]')
# An event ends where the next begins, or the list does.
_NEXT = re.compile(rb"\}\s*,?\s*(?=\{\s*\"(?:ph|cat|name|args|pid|ts)\"|\])")


def _pieces(text: bytes, begin: int) -> tuple[list[bytes], int]:
    """Cut the list of events; a piece that does not balance, because of a quote in a name, ends at the next event."""
    pieces: list[bytes] = []
    place = begin
    while True:
        opening = _OPEN.search(text, place)
        if opening is None:
            return pieces, place
        if opening.group() == b"]":
            more = _EVENT.search(text, opening.end())
            if more is None:
                return pieces, opening.start()
            # A bracket within a broken event.
            place = more.start()
            continue
        following = _NEXT.search(text, opening.start() + 1)
        limit = opening.start() + _LONGEST if following is None else following.start() + 1 + _BEYOND
        end = _balanced(text, opening.start(), limit)
        early = following is not None and end is not None and following.start() + 1 < end
        if end is None or (early and not _parses(text[opening.start() : end])):
            # Broken quotes hide the end: take the text up to where the next event begins.
            if following is None:
                return pieces, opening.start()
            end = following.start() + 1
        pieces.append(text[opening.start() : end])
        place = end


_EVENT = re.compile(rb"\{\s*\"(?:ph|cat|name|args|pid|ts)\"")
# The longest event, and how far one goes on behind what looks like the beginning of the next.
_LONGEST, _BEYOND = 2_000_000, 1_500


def _parses(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _balanced(text: bytes, start: int, limit: int) -> int | None:
    """Find the end of an object, quotes respected; None where the text or ``limit`` ends before."""
    depth, place, quoted = 0, start, False
    while True:
        found = _INSIDE.search(text, place)
        if found is None or found.start() > limit:
            return None
        mark, place = found.group(), found.end()
        if mark == b'"':
            before = found.start() - 1
            slashes = 0
            while before >= start and text[before] == 92:
                slashes, before = slashes + 1, before - 1
            if slashes % 2 == 0:
                quoted = not quoted
        elif not quoted:
            depth += 1 if mark == b"{" else -1
            if depth == 0:
                return place


def _value(text: bytes, start: int) -> bytes:
    """Take one JSON value."""
    opening = text[start : start + 1]
    if opening in {b"[", b"{"}:
        closing = {b"[": b"]", b"{": b"}"}[opening]
        depth = 0
        for found in re.finditer(rb"[\[\]{}]", text[start : start + 1_000_000]):
            if found.group() in {opening, closing}:
                depth += 1 if found.group() == opening else -1
                if depth == 0:
                    return text[start : start + found.end()]
        return b"null"
    plain = re.match(rb'"[^"]*"|[-\w.]+', text[start : start + 1000])
    return plain.group() if plain else b"null"


def repair_event(text: bytes, repaired: Repaired) -> Any:
    """Mend one event; None where that fails, which is counted."""
    try:
        plain = text.decode()
    except UnicodeDecodeError:
        plain = text.decode(errors="replace")
        repaired.count("invalid_utf8")
    for kind, mend in _MENDS:
        mended = mend(plain)
        if mended != plain:
            plain = mended
            repaired.count(kind)
        try:
            # Control characters in text are let through.
            value = json.loads(plain, strict=False)
        except (ValueError, RecursionError):
            continue
        if kind == "control_characters" and _CONTROL.search(plain):
            repaired.count(kind)
        return value if isinstance(value, dict) else None
    repaired.count("events_lost")
    return None


def _same(text: str) -> str:
    return text


def _bare_numbers(text: str) -> str:
    return _BARE.sub(lambda found: found.group(1) or f"{found.group(2)}null", text)


def _backslashes(text: str) -> str:
    return _LONE.sub(r"\\\\", text)


def _commas(text: str) -> str:
    without = re.sub(r",(\s*,)+", ",", _DANGLING.sub(r"\1", text))
    return _MISSING.sub(r"\1,\2\3", re.sub(r"\{\s*,", "{", without))


def _quotes(text: str) -> str:
    """Escape quotes within values: a quote ends a value only where a comma and a key, or a bracket, follow."""
    out, place = [], 0
    for found in re.finditer(r':\s*"', text):
        if found.start() < place:
            continue
        begin = found.end()
        end = _closing(text, begin)
        if end is None:
            break
        inner = text[begin:end]
        out += [text[place:begin], re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner)]
        place = end
    out.append(text[place:])
    return "".join(out)


# What follows the quote that ends a value: a key, or brackets and then a key or the end.
_FOLLOWING_KEY = r',\s*"[A-Za-z][A-Za-z0-9_ ()/.-]{0,60}"\s*:'
_END = re.compile(rf'"(?=\s*(?:{_FOLLOWING_KEY}|[}}\]][}}\]\s]*(?:{_FOLLOWING_KEY}|,?\s*$)))')


def _closing(text: str, begin: int) -> int | None:
    found = _END.search(text, begin)
    return None if found is None else found.start()


_MENDS = (
    ("control_characters", _same),
    ("bare_numbers", _bare_numbers),
    ("backslashes", _backslashes),
    ("commas", _commas),
    ("quotes", _quotes),
)
