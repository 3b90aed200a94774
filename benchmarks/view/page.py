"""How quick `strap view` is in a real browser: the first picture, another match, scrolling.

    python benchmarks/view/page.py RUN [RUN …] [--rounds 3]

For each run, median of the rounds, each in a browser with an empty cache, the films made anew:

    first picture    from asking for the page to the first frames of query and match being drawn
    another match    from choosing a match that was not looked at yet to its first frame
    scrolling        frames a second while all matches are scrolled at 5,000 pixels a second
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
IS_DRAWN = "() => window.strapView?.player?.shown"
SCROLL = """async () => {
  const scroller = document.querySelector(".grid-scroll");
  const begun = performance.now(), times = [], end = scroller.scrollHeight - scroller.clientHeight;
  await new Promise((done) => {
    const step = (now) => {
      times.push(now);
      scroller.scrollTop = Math.min(end, 5 * (now - begun));
      if (now - begun < 5000) requestAnimationFrame(step); else done();
    };
    requestAnimationFrame(step);
  });
  const gaps = times.slice(1).map((time, i) => time - times[i]).sort((a, b) => a - b);
  const seconds = (times.at(-1) - times[0]) / 1000;
  return { fps: gaps.length / seconds, slowest: gaps.at(-1) };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(platform.machine(), os.cpu_count(), "cores, load", os.getloadavg()[0])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        print(f"chromium {browser.version}")
        for run in given.runs:
            rounds = [measure(browser, run) for _ in range(given.rounds)]
            medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            print(run.name, json.dumps({key: round(value, 3) for key, value in medians.items()}))
        browser.close()


def measure(browser: Browser, run: Path) -> dict[str, float]:
    """Serve a run with an empty cache of films, and measure one visit."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "strap", "view", str(run), "--no-browser"]
        environment = {**os.environ, "STRAP_CACHE": folder}
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].split()[0]
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            found = visit(page, address)
            page.close()
            return found
        finally:
            server.terminate()
            server.wait()


def visit(page: Page, address: str) -> dict[str, float]:
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_function(IS_DRAWN)
    first = time.perf_counter() - begun
    page.wait_for_timeout(1500)
    count = page.evaluate("() => strapView.page.rows.count ?? strapView.page.rows.length ?? 0")
    others = [another_match(page) for _ in range(4)]
    page.get_by_role("button", name="All queries").click()
    page.wait_for_timeout(500)
    scrolled: dict[str, Any] = page.evaluate(SCROLL)
    return {
        "matches": float(count),
        "first picture, s": first,
        "another match, s": statistics.median(others),
        "scrolling, frames/s": scrolled["fps"],
        "slowest frame, ms": scrolled["slowest"],
    }


def another_match(page: Page) -> float:
    """Choose the next card; return the seconds until its film is drawn."""
    before = page.evaluate("() => location.hash")
    begun = time.perf_counter()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(before) => location.hash !== before", arg=before)
    page.wait_for_function(IS_DRAWN)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
