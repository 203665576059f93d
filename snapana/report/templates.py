"""Finds the templates, installed or in a checkout."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from snapana.units import format_bytes, format_count

if TYPE_CHECKING:
    from jinja2 import Environment


def template_folder() -> Path:
    """Give the folder of the templates: in the package, else (editable install) at the top of the checkout."""
    packaged = Path(str(files("snapana"))) / "templates"
    return packaged if packaged.is_dir() else Path(str(files("snapana"))).parent / "templates"


@cache
def environment() -> Environment:
    """Make the one Jinja environment: everything is escaped, what is undefined is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(template_folder(), encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["bytes"] = format_bytes
    env.filters["count"] = format_count
    env.filters["percent"] = _percent
    return env


def _percent(share: float | None, digits: int = 1) -> str:
    return "unknown" if share is None else f"{share:.{digits}%}"
