"""The page: complete, closed, and safe whatever the names in the file are."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser

import pytest

from snapana.analyses.overview import overview
from snapana.findings import judge
from snapana.report.html import render_report
from snapana.report.payload import script
from snapana.report.select import Selection
from snapana.report.templates import template_folder
from snapana.snapshot.model import InputInfo, Snapshot
from snapana.snapshot.normalise import normalise
from snapana.units import format_bytes
from tests.builders import History
from tests.conftest import load_sample

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&{{7*7}}"


def page_of(snapshot: Snapshot, selection: Selection | None = None) -> str:
    results = overview(snapshot)
    return render_report(results, judge(results), selection or Selection())


class _Elements(HTMLParser):
    """Collects what a browser would build."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> _Elements:
    parser = _Elements()
    parser.feed(page)
    return parser


SAMPLES = ["train_adam", "oom_train", "llm_oom", "leak_hook", "graphs", "no_history", "train_truncated", "stream_trace"]


@pytest.mark.parametrize("name", SAMPLES)
def test_pages_load_nothing_and_run_only_their_own_script(name: str) -> None:
    page = page_of(load_sample(name))
    found = parse(page)
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == found.tags.count("script")
    run = [text for attributes, text in scripts if not attributes]
    assert {attributes for attributes, _ in scripts} <= {"", ' type="text/plain"'}
    if run:
        (text,) = run
        assert text == script().text
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in page
    else:
        assert "script-src" not in page
    assert not [one for one in found.attributes if one[1].startswith("on")]
    for tag, attribute, value in found.attributes:
        if attribute in {"src", "href", "xlink:href", "data", "srcset"}:
            assert value.startswith("#"), (tag, attribute, value)
    assert "url(http" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert len(page.encode()) < 1_500_000
    assert len(found.ids) == len(set(found.ids))


def test_the_verdict_comes_first_with_its_figures() -> None:
    text = " ".join(parse(page_of(load_sample("oom_train"))).text)
    verdict = text.index("512.00 MiB did not fit")
    for later in ("5.52 GiB", "444.12 MiB", "122.23 GiB", "scenarios.py:66 forward"):
        assert text.index(later) > verdict
    assert text.index("Course") > verdict


@pytest.mark.parametrize("name", ["train_adam", "oom_train", "graphs"])
def test_figures_are_those_of_the_analyses(name: str) -> None:
    snapshot = load_sample(name)
    device = overview(snapshot).devices[0]
    page = page_of(snapshot)
    assert device.space is not None
    for figure in (
        device.peak.allocated,
        device.peak_reserved,
        device.end.allocated,
        device.space.view.unreleasable,
    ):
        assert f'title="{figure:,} bytes">{format_bytes(figure)}<' in page
    for site in device.peak.sites["bytes"]:
        assert f'title="{site:,} bytes"' in page


def test_folded_rows_are_summed() -> None:
    snapshot = load_sample("oom_train")
    peak = overview(snapshot).devices[0].peak
    page = page_of(snapshot, Selection(top=2))
    others = peak.allocated - int(peak.sites["bytes"].head(2).sum())
    assert f'title="{others:,} bytes"' in page
    assert f"others, {len(peak.sites) - 2} sites" in page


def hostile_document() -> dict[str, object]:
    history = History()
    for _ in range(6):
        history.alloc(3_000_000, "work")
        with history.annotate(f"Optimizer.step#{HOSTILE}"):
            pass
    document = copy.deepcopy(history.document())
    for entry in document["device_traces"][0]:
        entry["compile_context"] = entry["user_metadata"] = HOSTILE
        entry["frames"] = [{"name": HOSTILE, "filename": f"/x/{HOSTILE}.py", "line": 3}]
    document["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = HOSTILE
    document[HOSTILE] = HOSTILE
    return document


def hostile_page() -> str:
    return page_of(normalise(hostile_document(), InputInfo(HOSTILE, "snapshot")))


def test_names_in_a_file_are_text() -> None:
    page = hostile_page()
    found = parse(page)
    assert "img" not in found.tags
    assert found.tags.count("script") == len(re.findall(r"<script", page)) == 2
    assert HOSTILE in "".join(found.text)
    assert "49" not in re.sub(r"\d{3,}", "", "".join(found.text)) or "{{7*7}}" in "".join(found.text)
    assert not [one for one in found.attributes if one[1].startswith("on")]


def test_pages_are_the_same_each_time() -> None:
    assert page_of(load_sample("leak_hook")) == page_of(load_sample("leak_hook"))


@pytest.mark.parametrize("name", ["no_history", "segments_list"])
def test_files_without_events_say_what_was_missing(name: str) -> None:
    page = page_of(load_sample(name))
    assert "no events were recorded" in page
    assert "_record_memory_history" in page
    assert "window.no_history" in page


def test_several_devices_have_a_part_each() -> None:
    one, two = History(), History()
    one.alloc(512)
    two.alloc(3 * 2**20)
    document, other = one.document(), two.document()
    for segment in other["segments"]:
        segment["device"] = 1
    document["segments"] += other["segments"]
    document["device_traces"] += other["device_traces"]
    found = parse(page_of(normalise(document, InputInfo("two", "snapshot"))))
    assert {"d0", "d1"} <= set(found.ids)


def test_templates_are_found() -> None:
    assert (template_folder() / "report.html.j2").is_file()


@pytest.mark.parametrize("name", SAMPLES)
def test_sentences_stand_apart(name: str) -> None:
    """The templates' blocks take the line's end with them."""
    text = "".join(parse(page_of(load_sample(name))).text)
    assert re.findall(r"[a-z)]\.[A-Z][a-z]+ [a-z]+", text) == []


def test_other_settings_are_shown() -> None:
    text = " ".join(" ".join(parse(page_of(load_sample("llm_oom"))).text).split())
    assert "expandable_segments:True would have held the recorded requests in 130.39 GiB" in text
    assert "and the request that failed" in text
    assert "What other allocator settings" not in page_of(load_sample("train_late"))


def test_a_setting_that_avoids_the_failure_is_named() -> None:
    text = " ".join(" ".join(parse(page_of(load_sample("frag_3.8"))).text).split())
    assert "expandable_segments:True would have held the recorded requests" in text
    assert "No setting that was tried" not in text
