"""What is installed is what is here."""

from __future__ import annotations

import tomllib

from tests.conftest import CHECKOUT


def test_every_package_is_shipped() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    shipped = set(project["tool"]["setuptools"]["packages"])
    here = {".".join(path.parent.relative_to(CHECKOUT).parts) for path in (CHECKOUT / "snapana").rglob("__init__.py")}
    assert shipped == here | {"snapana.templates"}


def test_every_template_is_shipped() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["snapana.templates"]
    templates = CHECKOUT / "templates"
    shipped = {path for pattern in patterns for path in templates.glob(pattern)}
    assert shipped == {path for path in templates.rglob("*") if path.is_file()}
