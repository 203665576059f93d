"""Measure a report in the system's Chromium: its size, when it can be used, and how long a frame takes.

``python benchmarks/page.py REPORT.html``
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

FRAMES = """async () => {
  const view = document.querySelector(".explorer").explorer;
  const all = view.model.events;
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const work = [], frames = [];
  for (let step = 0; step < 60; step += 1) {
    const start = performance.now();
    if (step < 30) view.zoom(0.8, 0.4); else view.pan(0.1);
    view.paintTimeline();
    work.push(performance.now() - start);
    await next();
    frames.push(performance.now() - start);
  }
  const middle = (list) => [...list].sort((a, b) => a - b)[30];
  return { events: all, work: middle(work), frame: middle(frames), worst: Math.max(...frames) };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(options.report.resolve().as_uri())
        page.wait_for_selector(".explorer[data-ready=yes]", state="attached")
        ready = page.evaluate("performance.now()")
        found = page.evaluate(FRAMES)
        browser.close()
    print(f"{options.report.name}: {options.report.stat().st_size / 2**20:.2f} MiB, {found['events']:,} events")
    print(f"to be used after {ready / 1e3:.2f} s")
    print(
        f"60 steps of zoom and pan: median {found['work']:.1f} ms of work, {found['frame']:.1f} ms a frame, "
        f"{found['worst']:.1f} ms at most"
    )


if __name__ == "__main__":
    main()
