"""Text and numbers of a stranger's file, made harmless where they are read."""

from __future__ import annotations

import re
from typing import Any

# Longer than any C++ name seen.
LONGEST = 10_000
# C0 and C1 controls, line separators, marks that reorder text, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_UNSAFE_BUT_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))


def plain_text(value: Any, *, lines: bool = False) -> str:
    """Give text that neither moves a terminal's cursor, nor reorders what is beside it, nor fails to be written.

    Args:
        value: text; a number or None becomes its text, anything else only the name of its type, since the text of
            a nested list can be endless.
        lines: keep line ends.

    """
    if type(value) is not str:
        if isinstance(value, str):
            value = str(value)
        elif value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
            return str(value)
        else:
            return f"<{type(value).__name__}>"
    if len(value) > LONGEST:
        value = value[:LONGEST] + "..."
    unsafe = _UNSAFE_BUT_LINES if lines else _UNSAFE
    return unsafe.sub(_escape, value) if unsafe.search(value) else value


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
