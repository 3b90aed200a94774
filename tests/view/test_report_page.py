"""The report's single file in a real browser, opened from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.view.browsing import Tab, needs_browser, open_browser, wait_for

from strap.view.run_views import RunView
from strap.view.single_file import write_single_file

pytestmark = [pytest.mark.slow, needs_browser]


def test_a_report_plays_and_asks_nobody(view: RunView, tmp_path: Path) -> None:
    page = write_single_file(tmp_path / "report.html", view).path
    view.close()
    address = f"{page.as_uri()}#query=1"
    with open_browser() as browser, Tab(browser, address) as tab:
        wait_for(tab, "strapView.player.shown && window.drawn.Match !== undefined")
        pairs = tab.evaluate("strapView.player.pairs")
        assert len(pairs) > 5
        tab.keyboard.press("Space")
        wait_for(tab, "strapView.player.shown.step > 3")
        shown = tab.evaluate("strapView.player.shown")
        assert [shown["query"], shown["match"]] == pairs[shown["step"]][:2]
        assert tab.get_by_role("button", name="Reject").count() == 0  # there is nobody to tell
        assert tab.locator(".card img, .card canvas").count() > 0


def test_a_report_without_films_says_so(view: RunView, tmp_path: Path) -> None:
    page = write_single_file(tmp_path / "report.html", view, max_bytes=0).path
    view.close()
    with open_browser() as browser, Tab(browser, page.as_uri()) as tab:
        tab.get_by_text("This report does not hold that: open the run").first.wait_for()
