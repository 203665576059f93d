"""Text of a stranger's file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapana.plain import LONGEST, plain_text


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_text_can_be_written_and_moves_no_cursor(text: str) -> None:
    plain = plain_text(text)
    plain.encode()
    assert "\x1b" not in plain
    assert "\n" not in plain
    assert not set(plain) & set("\u202e\u2066\u2028")


@given(st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=100))
def test_ordinary_text_stays(text: str) -> None:
    assert plain_text(text) == text


def test_letters_of_all_languages_stay() -> None:
    assert plain_text("répertoire/模型.py Größe") == "répertoire/模型.py Größe"


def test_lines_may_stay() -> None:
    assert plain_text("a\nb\x1b[1m", lines=True) == "a\nb\\x1b[1m"


def test_what_is_no_text_is_named() -> None:
    """Lists that name each other many times have no end of text."""
    laugh: list[object] = []
    for _ in range(60):
        laugh = [laugh, laugh]
    assert plain_text(laugh) == "<list>"
    assert plain_text(10**5000) == "<int>"
    assert [plain_text(value) for value in (None, True, 3, 2.5)] == ["None", "True", "3", "2.5"]


@pytest.mark.parametrize("length", [LONGEST, LONGEST + 1])
def test_length_is_bounded(length: int) -> None:
    assert len(plain_text("x" * length)) <= LONGEST + 3
