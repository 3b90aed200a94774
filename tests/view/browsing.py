"""A real browser for the viewer's tests: what a tab shows, and what went wrong in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")

RECORD_DRAWINGS = """
(() => {
  // What is really drawn: the number of the frame that each film's canvas shows.
  window.drawn = {};
  const original = CanvasRenderingContext2D.prototype.drawImage;
  CanvasRenderingContext2D.prototype.drawImage = function (picture, ...places) {
    const role = this.canvas.getAttribute("aria-label")?.split(":")[0];
    if (places.length === 8 && (role === "Query" || role === "Match")) {
      const [x, y, width, height] = places;
      window.drawn[role] = (y / height) * (picture.width / width) + x / width;
    }
    return original.call(this, picture, ...places);
  };
})();
"""


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start the browser, without a window."""
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serve(*paths: Path, cache: Path) -> Iterator[str]:
    """Run `strap view` and give the address it tells."""
    command = [sys.executable, "-m", "strap", "view", *map(str, paths), "--no-browser"]
    environment = os.environ | {"STRAP_CACHE": str(cache)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            server.terminate()


class Tab:
    """A tab that must have no error and ask nobody else for anything.

    Args:
        browser: of `open_browser`.
        address: of the page.
        ready: what holds in the page once it is there.
        options: of the browser's context, such as `color_scheme`.
    """

    def __init__(
        self, browser: Any, address: str, *, ready: str = "window.strapView", **options: Any
    ) -> None:
        self.ready = ready
        self.context = browser.new_context(viewport={"width": 1600, "height": 1000}, **options)
        self.address = address
        self.errors: list[str] = []
        self.hosts: set[str] = set()

    def __enter__(self) -> Any:
        self.context.add_init_script(RECORD_DRAWINGS)
        page = self.context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.goto(self.address)
        wait_for(page, self.ready)
        return page

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.errors.append(text)

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert not self.errors
        assert self.hosts <= {urlsplit(self.address).netloc, ""}


def wait_for(page: Any, condition: str, seconds: float = 30) -> None:
    """Wait until something holds; playwright's own way needs `eval`, which the page forbids."""
    until = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < until, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(30)
