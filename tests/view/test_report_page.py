"""The report's single file in a real browser, opened from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.view.browsing import Tab, needs_browser, open_browser, wait_for

from strap.view.run_views import RunView
from strap.view.single_file import write_single_file

pytestmark = [pytest.mark.slow, needs_browser]

INKED = """
[...document.querySelectorAll(".films canvas")].map((canvas) => {
  const copy = new OffscreenCanvas(64, 64).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0, 64, 64);
  return copy.getImageData(0, 0, 64, 64).data.some(Boolean);
})
"""
"""whether anything is drawn on the canvases of query and match"""


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
        assert tab.locator(".card-picture:visible").count() > 0


def test_a_report_without_films_says_so(view: RunView, tmp_path: Path) -> None:
    page = write_single_file(tmp_path / "report.html", view, max_bytes=0).path
    view.close()
    with open_browser() as browser, Tab(browser, page.as_uri()) as tab:
        tab.get_by_text("The report has no video of this match: open the run").first.wait_for()


def test_a_match_that_is_not_filmed_never_shows_the_film_of_another(
    view: RunView, tmp_path: Path
) -> None:
    for max_bytes in range(20_000, 1_000_000, 10_000):
        report = write_single_file(tmp_path / "report.html", view, max_bytes=max_bytes)
        if report.n_filmed:
            break
    assert 0 < report.n_filmed < 6  # so the second match of the first query has no film
    view.close()
    address = f"{report.path.as_uri()}#query=0"
    with open_browser() as browser, Tab(browser, address) as tab:
        wait_for(tab, "strapView.player.shown && strapView.player.pairs.length > 1")
        assert tab.evaluate(INKED) == [True, True]
        assert tab.inner_text(".transport .where").startswith("pair 1 of")
        tab.keyboard.press("ArrowRight")
        wait_for(tab, "strapView.player.problem")
        assert tab.evaluate(INKED) == [False, False]
        assert tab.inner_text(".transport .where") == ""
        assert [text.strip() for text in tab.locator(".film-problem").all_inner_texts()] == [
            "The report has no video of this match: open the run with `strap view`."
        ] * 2
        assert tab.locator(".note").is_hidden()
        tab.keyboard.press("ArrowLeft")
        wait_for(tab, "strapView.player.shown")
        assert tab.evaluate(INKED) == [True, True]
        assert tab.locator(".film-problem").first.is_hidden()


def test_cards_without_a_film_say_so(view: RunView, tmp_path: Path) -> None:
    page = write_single_file(tmp_path / "report.html", view, max_bytes=0).path
    view.close()
    with open_browser() as browser, Tab(browser, f"{page.as_uri()}#query=all") as tab:
        tab.get_by_text("no video here").first.wait_for()
        wait_for(tab, "!document.querySelector('.card-nothing[hidden]')")
        assert tab.locator(".card-nothing:visible").count() == tab.locator(".card").count() > 6
