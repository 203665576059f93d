"""The one exception that reaches a user."""

from __future__ import annotations

from snapana.plain import plain_text


class SnapanaError(Exception):
    """A problem that the user can act on: one line of message, a stable code, and a hint.

    Args:
        code: dotted, stable, for scripts; such as ``input.truncated``.
        message: one line that says what is wrong and with which file.
        hint: what to do about it; may be empty.

    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = plain_text(" ".join(message.split()))
        self.hint = plain_text(" ".join(hint.split()))

    def __str__(self) -> str:
        line = f"{self.message} [{self.code}]"
        return f"{line} {self.hint}" if self.hint else line

    def to_dict(self) -> dict[str, str]:
        """Give the ``error`` object of the JSON contract."""
        return {"code": self.code, "message": self.message, "hint": self.hint}
