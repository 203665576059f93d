"""The interactive part of the page, in a real browser: it does what it says, with the figures of the JSON."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapana.analyses.compare import compare
from snapana.analyses.overview import overview
from snapana.report.compare import render_comparison
from snapana.report.payload import payload
from snapana.report.select import Selection
from snapana.units import format_bytes
from tests.builders import History
from tests.conftest import load_sample
from tests.report.test_html import hostile_page, page_of
from tests.report.test_page import ARGUMENTS, CHROMIUM, sync_api, visit

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
NAMES = ["train_adam", "oom_train", "graphs", "stream_trace"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("explorer")
    written = {name: folder / f"{name}.html" for name in NAMES}
    for name, path in written.items():
        path.write_text(page_of(load_sample(name)), encoding="utf-8")
    return written


def explore(browser: Any, path: Path, anchor: str = "", **options: Any) -> tuple[Any, list[str]]:
    page, trouble = visit(browser, path, **options)
    if anchor:
        page.goto(f"{path.as_uri()}#{anchor}")
        page.reload()
        trouble.clear()
    page.wait_for_selector(".explorer[data-ready=yes]", state="attached")
    return page, trouble


HAND = "const x = document.querySelector('.explorer').explorer, m = x.model;"


def wait(page: Any, expression: str) -> None:
    page.wait_for_function(f"() => {{ {HAND} return {expression}; }}")


def ask(page: Any, expression: str) -> Any:
    """Evaluate with the explorer and its model at hand."""
    return page.evaluate(
        f"() => {{ const x = document.querySelector('.explorer').explorer, m = x.model; return {expression}; }}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_analyses(browser: Any, pages: dict[str, Path], name: str) -> None:
    page, trouble = explore(browser, pages[name])
    snapshot = load_sample(name)
    device = overview(snapshot).devices[0]
    curves = snapshot.replay[device.device].curves
    page.click(".explorer >> text=Peak")
    assert f"{format_bytes(device.peak.allocated)} allocated in" in page.inner_text(".explorer .status")
    rows = ask(page, "m.sites(m.head.peak).map((row) => [row.name, row.bytes, row.blocks])")
    own = device.peak.sites
    assert {(site, size, blocks) for site, size, blocks in rows} == set(
        zip(own["site"], own["bytes"], own["blocks"], strict=True)
    )
    last = len(curves) - 2
    for event in sorted({-1, 0, last // 3, last // 2, last}):
        allocated = int(curves["allocated"].iloc[event + 1])
        assert ask(page, f"m.sites({event}).reduce((sum, row) => sum + row.bytes, 0)") == allocated
        assert ask(page, f"m.reserved({event})") == int(curves["reserved"].iloc[event + 1])
    # What the picture shows at any zoom is the fullest instant of each column.
    for start, end in ((0, last + 1), (last // 3, last // 2)):
        for mode in ("site", "category", "stream", "pool", "step"):
            sums = ask(page, f"Array.from(m.columns(m.groups('{mode}'), {start}, {end}, 700).totals)")
            highest = int(curves["allocated"].to_numpy()[max(start, 1) : end + 2].max())
            assert max(sums) == highest
    assert trouble == []
    page.context.close()


def test_zoom_pan_and_keys(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = explore(browser, pages["train_adam"])
    page.locator("canvas.timeline").scroll_into_view_if_needed()
    box = page.locator("canvas.timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.mouse.wheel(0, -400)
    wait(page, "x.to - x.from < m.events")
    before = ask(page, "[x.from, x.to]")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 120, box["y"] + 100, steps=4)
    page.mouse.up()
    after = ask(page, "[x.from, x.to]")
    assert after[0] > before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0])
    page.locator("canvas.timeline").focus()
    peak = ask(page, "m.head.peak")
    for key, cursor in (("p", peak), ("ArrowRight", peak + 1), ("End", ask(page, "m.head.end"))):
        page.keyboard.press(key)
        assert ask(page, "x.cursor") == cursor
    page.keyboard.press("0")
    assert ask(page, "[x.from, x.to]") == [0, ask(page, "m.events")]
    assert trouble == []
    page.context.close()


def test_hover_and_click_name_the_block(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = explore(browser, pages["train_adam"])
    canvas = page.locator("canvas.timeline")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 0.33, "y": 225})
    tip = page.inner_text(".explorer .tip")
    assert "scenarios.py:66 forward" in tip
    assert "block of 16.00 MiB" in tip
    canvas.click(position={"x": box["width"] * 0.33, "y": 225})
    detail = page.inner_text(".explorer .detail")
    assert "scenarios.py:66 forward" in detail
    assert "/home/user/train/scenarios.py:90 loss_of" in detail
    assert "in a segment of" in detail
    assert "freed by" in detail
    assert page.locator(".explorer tr.chosen").count() == 1
    assert trouble == []
    page.context.close()


def test_search_sort_and_copy(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = explore(browser, pages["train_adam"])
    page.fill(".explorer input[type=search]", "attend")
    sites = page.locator(".explorer tbody tr .pick").all_inner_texts()
    assert sites == ["scenarios.py:61 attend", "scenarios.py:62 attend"]
    assert "filtered out" in page.inner_text(".explorer tfoot")
    page.click(".explorer th >> text=bytes")
    assert page.locator(".explorer tbody tr .pick").all_inner_texts() == sites[::-1]
    page.click(".explorer >> text=Copy CSV")
    copied = page.input_value(".explorer textarea.copied").splitlines()
    assert copied[0] == "bytes,blocks,category,site"
    assert copied[1].endswith('"scenarios.py:62 attend"')
    page.click(".explorer >> text=Copy Markdown")
    assert page.input_value(".explorer textarea.copied").startswith("| bytes | blocks | category | site |")
    page.fill(".explorer input[type=search]", "")
    page.fill(".explorer input[type=number]", "100")
    assert page.locator(".explorer tbody tr").count() == 5
    assert trouble == []
    page.context.close()


def test_the_address_names_the_view(browser: Any, pages: dict[str, Path]) -> None:
    page, trouble = explore(browser, pages["oom_train"], "d0,e=2000,v=1000-3000,g=category,q=forward")
    assert ask(page, "[x.cursor, x.from, x.to, x.mode]") == [2000, 1000, 3000, "category"]
    assert page.input_value(".explorer input[type=search]") == "forward"
    page.click(".explorer >> text=Out of memory")
    wait(page, "location.hash.includes('e=' + m.head.oom)")
    assert trouble == []
    page.context.close()
    for odd in ("d0,e=x,v=9-1,g=<script>,s=999999,q=%E0%A4%A", "d7,e=1", "%%%"):
        page, trouble = explore(browser, pages["oom_train"], odd)
        assert trouble == []
        page.context.close()


def test_other_scripts_do_not_run(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    injected = tmp_path / "injected.html"
    text = pages["train_adam"].read_text(encoding="utf-8")
    injected.write_text(text.replace("</main>", "<script>window.owned = true</script></main>"), encoding="utf-8")
    page, trouble = visit(browser, injected)
    page.wait_for_selector(".explorer[data-ready=yes]", state="attached")
    assert page.evaluate("window.owned") is None
    assert any("Content Security Policy" in line for line in trouble)
    page.context.close()


def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile_page(), encoding="utf-8")
    page, trouble = explore(browser, path)
    for mode in ("site", "category", "stream", "pool", "step"):
        page.select_option(".explorer select", mode)
    page.locator(".explorer .pick").first.click()
    assert page.locator(".explorer img").count() == 0
    assert trouble == []
    page.context.close()


@pytest.mark.parametrize("width", [400, 1280, 3840])
def test_it_fits(browser: Any, pages: dict[str, Path], width: int) -> None:
    for scheme in ("light", "dark"):
        page, trouble = explore(browser, pages["graphs"], viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        parts = "'.explorer canvas, .explorer input, .explorer select, .explorer button'"
        named = "one.getAttribute('aria-label') || one.textContent.trim() || one.closest('label')"
        unnamed = ask(page, f"[...document.querySelectorAll({parts})].filter((one) => !({named})).length")
        assert unnamed == 0
        assert trouble == []
        page.context.close()


def test_a_large_recording_stays_small_and_exact(browser: Any, tmp_path: Path) -> None:
    history = History()
    kept = []
    for number in range(6_000):
        blocks = [history.alloc(2**20 * (1 + layer % 3), f"layer_{layer}") for layer in range(6)]
        if number % 50 == 0:
            kept.append(history.alloc(4096, "keep"))
        for addr in reversed(blocks):
            history.free(addr)
    snapshot = history.snapshot()
    path = tmp_path / "large.html"
    path.write_text(page_of(snapshot), encoding="utf-8")
    assert path.stat().st_size < 1_500_000
    page, trouble = explore(browser, path)
    curves = snapshot.replay[0].curves["allocated"].to_numpy()
    totals = ask(page, "Array.from(m.columns(m.groups('site'), 0, m.events, 1000).totals)")
    assert max(totals) == curves.max()
    assert trouble == []
    page.context.close()


def test_payload_without_a_browser() -> None:
    snapshot = load_sample("train_adam")
    device = overview(snapshot).devices[0]
    packed = payload(snapshot, device)
    assert packed is not None
    raw = zlib.decompress(base64.b64decode(packed))
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    assert head["lives"] == len(snapshot.replay[0].allocations)
    start = 4 + size + -size % 4
    assert len(raw) == start + 4 * head["lives"] * len(head["columns"])
    no_events = load_sample("no_history")
    assert payload(no_events, overview(no_events).devices[0]) is None


def test_two_runs_share_an_axis_and_a_difference(browser: Any, tmp_path: Path) -> None:
    names = ("train_adam", "train_checkpoint")
    found = compare(*(overview(load_sample(name)) for name in names), names)
    path = tmp_path / "compared.html"
    path.write_text(render_comparison([found], Selection()), encoding="utf-8")
    page, trouble = visit(browser, path)
    page.wait_for_selector(".difference[data-ready=yes]", state="attached")
    sides = "const [a, b] = [...document.querySelectorAll('.explorer.side')].map((root) => root.explorer);"
    root = page.evaluate("() => document.querySelector('.difference').explorer.whole.sizes")
    assert root == [found.base.device.peak.allocated, found.other.device.peak.allocated]
    # Lines that both have keep their colour.
    colours = page.evaluate(
        f"() => {{ {sides} return [a, b].map((x) => {{ const g = x.model.groups('site'); "
        "return Object.fromEntries(g.labels.map((label, at) => [label, g.slots[at]])); }); }"
    )
    shared = set(colours[0]) & set(colours[1]) - {"others"}
    assert len(shared) > 4
    assert all(colours[0][label] == colours[1][label] for label in shared)
    # The second steps of both lie under each other.
    ends = [side.device.steps.table["end_event"].tolist() for side in (found.base, found.other)]
    page.evaluate(f"() => {{ {sides} a.look({ends[0][0] + 1}, {ends[0][1] + 1}); }}")
    assert page.evaluate(f"() => {{ {sides} return [b.from, b.to]; }}") == [ends[1][0] + 1, ends[1][1] + 1]
    page.wait_for_function(f"() => {{ {sides} return a.drawn.top === b.drawn.top; }}")
    assert trouble == []
    page.context.close()
    page, trouble = visit(browser, path, java_script_enabled=False)
    assert "359.56 MiB lower" in page.inner_text(".verdict .title")
    assert page.locator(".explorer").first.is_hidden()
    assert trouble == []
    page.context.close()
