"""The page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import load_sample
from tests.report.test_html import HOSTILE, hostile_page, page_of

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    written = {"hostile": folder / "hostile.html"}
    written["hostile"].write_text(hostile_page(), encoding="utf-8")
    for name in ("oom_train", "leak_hook", "no_history"):
        written[name] = folder / f"{name}.html"
        written[name].write_text(page_of(load_sample(name)), encoding="utf-8")
    return written


def visit(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """Open a page; give it and whatever it did that it should not."""
    page = browser.new_context(**options).new_page()
    trouble: list[str] = []
    page.on("request", lambda request: trouble.append(request.url) if request.url != path.as_uri() else None)
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    return page, trouble


@pytest.mark.parametrize("name", ["oom_train", "leak_hook", "no_history", "hostile"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_stay_quiet(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    page, trouble = visit(browser, pages[name], viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert trouble == []
    page.context.close()


def test_everything_is_there_without_javascript(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = visit(browser, pages["oom_train"], java_script_enabled=False)
    assert page.locator(".verdict .title").inner_text() == "Out of memory: 512.00 MiB did not fit. Cause: limit."
    stack = page.locator("td.site details").first
    assert not stack.locator("pre").is_visible()
    stack.locator("summary").click()
    assert stack.locator("pre").is_visible()
    assert "scenarios.py:66 forward" in stack.locator("pre").inner_text()
    assert trouble == []
    page.context.close()


def test_hostile_names_are_shown_as_they_are(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = visit(browser, pages["hostile"])
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator("img").count() == 0
    assert trouble == []
    page.context.close()


def test_the_policy_stops_an_injected_script(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["oom_train"].read_text(encoding="utf-8")
    spoiled = tmp_path / "spoiled.html"
    spoiled.write_text(text.replace("</main>", "<script>document.title = 'taken'</script></main>"), encoding="utf-8")
    page, trouble = visit(browser, spoiled)
    assert page.title() != "taken"
    assert any("Content Security Policy" in line for line in trouble)
    page.context.close()


def contrast(foreground: tuple[int, ...], background: tuple[int, ...]) -> float:
    """Contrast of two colours, after WCAG 2."""

    def luminance(colour: tuple[int, ...]) -> float:
        parts = [value / 255 for value in colour]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(browser: Any, pages: dict[str, Path], scheme: str) -> None:
    page, _ = visit(browser, pages["oom_train"], color_scheme=scheme)
    colours = page.evaluate(
        """() => ['.verdict .title', '.verdict dt', '.note', '.badge', '.figures th', 'svg text', 'summary']
            .map(one => getComputedStyle(document.querySelector(one)).color)
            .concat(getComputedStyle(document.documentElement).backgroundColor)"""
    )
    values = [tuple(int(part) for part in colour[4:-1].split(",")[:3]) for colour in colours]
    for colour in values[:-1]:
        assert contrast(colour, values[-1]) >= 4.5
    page.context.close()
