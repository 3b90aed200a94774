"""The viewer's page in a real browser, against a real server on generated data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import h5py
import pytest
from tests.view.browsing import Tab, needs_browser, open_browser, serve, wait_for

from strap.choices import change_choices, open_choices
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.segments import Segmentation
from strap.synthetic import make_planted

pytestmark = needs_browser

HOSTILE = "<img src=x onerror=\"document.title='broken'\"> put the \x1b[31mred mug away"
"""an instruction that is shown as text, or else the page's title changes"""
PIECE = 48
"""frames on a sheet of the player: a shorter film is one sheet, so its frames can be counted"""
READY = "window.strapView?.player.shown && strapView.player.pairs.length > 1"
"""a pair is shown, and the path is known"""
SCREENS = {"wide": (1600, 1000), "narrow": (390, 844)}

WATCH = """
async (seconds) => {
  // The pair on the canvases at every picture that the browser shows.
  const pairs = [];
  const until = performance.now() + seconds * 1000;
  while (performance.now() < until) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    pairs.push([window.drawn.Query, window.drawn.Match]);
  }
  return pairs;
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose matches have a hostile instruction."""
    folder = tmp_path_factory.mktemp("page")
    planted = make_planted(folder / "data")
    with h5py.File(planted.prior, "r+") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": HOSTILE})
    options = RetrievalOptions(encoder="pixels", top_k=12, augmented="none")
    run = run_retrieval(
        planted.target, [planted.prior], folder / "my-run", options, stores=folder / "stores"
    )
    return run.path


@pytest.fixture(scope="module")
def address(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `strap view` serves the run."""
    with serve(place, cache=tmp_path_factory.mktemp("cache")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with Tab(browser, address, ready=READY) as found:
        yield found


def _alignment(address: str, row: int) -> Any:
    with urlopen(f"{address}api/alignment?match={row}") as answer:
        return json.load(answer)


def _path_of_shown(page: Any, address: str) -> set[tuple[int, int]]:
    """Return the pairs of the chosen match's warping path, as the server tells them."""
    row = int(page.evaluate("strapView.state.match"))
    path = _alignment(address, row)["path"]
    assert max(max(i, j) for i, j, _ in path) < PIECE
    return {(i, j) for i, j, _ in path}


def test_choosing_a_query_and_a_match_shows_both(page: Any) -> None:
    page.locator(".segment").nth(4).click()
    assert page.inner_text(".pane-matches h2") == "Query 5"
    page.locator(".card-main").nth(1).click()
    row = page.evaluate("strapView.state.match")
    assert page.url.endswith(f"#query=4&match={row}")
    segment = page.locator(".card.is-chosen .card-place").nth(1).inner_text()
    assert segment.replace("\n", "") in page.inner_text(".film:nth-child(2) figcaption")


def test_a_link_leads_to_a_match(page: Any, address: str) -> None:
    page.goto(f"{address}#query=3&match=7")
    page.reload()
    wait_for(page, "window.strapView?.player.shown")
    assert page.evaluate("strapView.page.alignment.shownKey").split()[1] == "7"


def test_hostile_instructions_are_shown_as_text(page: Any) -> None:
    assert page.locator(".card-title").first.text_content() == HOSTILE
    assert page.locator("main img").count() == 0
    assert "broken" not in page.title()


def test_films_are_in_lock_step_along_the_path_at_every_moment(page: Any, address: str) -> None:
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
        wait_for(page, READY)
        path = _path_of_shown(page, address)
        page.keyboard.press("Space")
        shown = {tuple(pair) for pair in page.evaluate(WATCH, 2)}
        page.keyboard.press("Space")
        assert len(shown) > 5
        assert shown <= path


def test_scrubbing_moves_both_films(page: Any, address: str) -> None:
    path = _path_of_shown(page, address)
    matrix = page.locator(".matrix").bounding_box()
    page.mouse.move(matrix["x"] + matrix["width"] / 2, matrix["y"] + 20)
    page.mouse.down()
    seen = set()
    for step in range(8):
        page.mouse.move(matrix["x"] + matrix["width"] / 2, matrix["y"] + 20 + 18 * step)
        page.wait_for_timeout(60)
        seen.add(tuple(page.evaluate("[drawn.Query, drawn.Match]")))
    page.mouse.up()
    page.locator(".scrub").focus()
    page.keyboard.press("Home")
    assert page.evaluate("[drawn.Query, drawn.Match]") == [0, 0]
    assert len(seen) > 2
    assert seen <= path


def test_rejecting_is_kept_in_the_run_and_undone(page: Any, place: Path) -> None:
    row = int(page.evaluate("strapView.state.match"))
    page.keyboard.press("r")
    assert page.locator(".card.is-chosen .card-standing").inner_text() == "✕ rejected"
    wait_for(page, "!strapView.page.choices.pending")
    assert page.inner_text(".kept") == "11 of 12 matches kept"
    assert row not in open_choices(place).rows(open_run(place).matches)
    page.keyboard.press("u")
    wait_for(page, "strapView.page.choices.now.kept === 12")
    assert page.locator(".card.is-chosen .card-standing").is_hidden()


def test_a_task_that_no_match_has_any_more_is_named(
    browser: Any, place: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(place, tmp_path / "run"))
    change_choices(path, open_run(path).matches, {"task": HOSTILE, "weight": 0.5})
    file = path / "choices.json"
    content = json.loads(file.read_text())
    content["choices"]["tasks"] = {"put the mug awya": ["", 0.5]}
    file.write_text(json.dumps(content))
    with serve(path, cache=tmp_path) as found, Tab(browser, found, ready=READY) as page:
        told = page.inner_text(".kept").split("\n")
        lost = "no match has the task of an earlier choice any more: “put the mug awya”"
        assert told == ["12 of 12 matches kept", lost]


def test_a_match_that_the_filters_hide_is_not_chosen(page: Any) -> None:
    page.keyboard.press("q")
    page.get_by_label("Quality").select_option("good")
    page.get_by_label("Quality").select_option("poor")
    row = int(page.evaluate("strapView.state.match"))
    assert page.evaluate(f"strapView.page.list.includes({row})")
    assert page.evaluate(f"strapView.page.rows.quality({row})") == "poor"
    page.keyboard.press("r")
    wait_for(page, "!strapView.page.choices.pending")
    assert page.evaluate("strapView.page.choices.now.rejected") == [row]
    page.keyboard.press("u")
    wait_for(page, "strapView.page.choices.now.kept === 12")
    page.evaluate("location.hash = 'query=all&text=nothing-is-called-so'")
    wait_for(page, "!strapView.page.list.length")
    for key in ("r", "a"):
        page.evaluate("document.getElementById('notice').textContent = ''")
        page.keyboard.press(key)
        assert page.text_content("#notice") == "No match is chosen."
    assert page.evaluate("strapView.page.choices.now.kept") == 12


def test_rejecting_with_shift_goes_on_to_the_next_match(page: Any) -> None:
    page.keyboard.press("q")
    first, second = page.evaluate("strapView.page.list.slice(0, 2)")
    page.evaluate(f"location.hash = 'query=all&match={first}'")
    wait_for(page, f"strapView.state.match === '{first}'")
    page.keyboard.press("Shift+R")
    wait_for(page, "!strapView.page.choices.pending")
    assert page.evaluate("strapView.page.choices.now.rejected") == [first]
    assert page.evaluate("strapView.state.match") == str(second)
    page.keyboard.press("u")
    wait_for(page, "strapView.page.choices.now.kept === 12")


def test_what_a_link_says_of_unknown_things_is_ignored(page: Any, address: str) -> None:
    page.goto(f"{address}#query=99&match=x&quality=best&task=none&cost=cheap&camera=no&dataset=no")
    page.reload()
    wait_for(page, READY)
    assert page.inner_text(".pane-matches h2") == "Query 1"
    assert page.locator(".card").count() == page.evaluate("strapView.page.rows.of(0).length")
    assert page.locator(".chips").is_hidden()


def test_the_dialog_about_a_run(page: Any) -> None:
    page.get_by_role("button", name="About").click()
    assert page.inner_text("dialog[open] h2") == "About this run"
    names = page.locator("dialog[open] dt").all_inner_texts()
    facts = dict(zip(names, page.locator("dialog[open] dd").all_inner_texts(), strict=True))
    assert (facts["top-k"], facts["step set"]) == ("12", "strap")
    assert facts["cut by"] == "stops, epsilon 0.005"
    assert facts["retrieved in"].endswith(" s")


def test_two_tabs_do_not_fight(page: Any, browser: Any, address: str) -> None:
    with Tab(browser, address, ready=READY) as other:
        other.keyboard.press("r")
        wait_for(other, "!strapView.page.choices.pending")
        page.evaluate("window.dispatchEvent(new Event('focus'))")
        wait_for(page, "strapView.page.choices.now.kept === 11")
        page.keyboard.press("u")
        wait_for(page, "strapView.page.choices.now.kept === 12 && !strapView.page.choices.pending")
        other.evaluate("window.dispatchEvent(new Event('focus'))")
        wait_for(other, "strapView.page.choices.now.kept === 12")


def test_a_page_of_older_matches_chooses_nothing_until_it_is_reloaded(
    browser: Any, tmp_path: Path
) -> None:
    planted = make_planted(tmp_path / "data")

    def retrieve(top_k: int) -> Path:
        options = RetrievalOptions("pixels", top_k, augmented="none")
        data, out = (planted.target, [planted.prior]), tmp_path / "run"
        return run_retrieval(*data, out, options, overwrite=True).path

    with serve(retrieve(12), cache=tmp_path) as found:
        tab = Tab(browser, found, ready=READY)
        with tab as page:
            path = retrieve(8)
            page.keyboard.press("r")
            wait_for(page, "!strapView.page.choices.pending")
            assert page.text_content("#notice").endswith("nothing was changed; reload the page")
            assert page.inner_text(".kept") == "12 of 12 matches kept"
            assert not (path / "choices.json").exists()
            page.reload()
            wait_for(page, READY)
            assert page.inner_text(".kept") == "8 of 8 matches kept"
            page.keyboard.press("r")
            wait_for(page, "!strapView.page.choices.pending")
            assert page.inner_text(".kept") == "7 of 8 matches kept"
            retrieve(6)
            page.evaluate("window.dispatchEvent(new Event('focus'))")
            wait_for(page, "strapView.page.rows.count === 6")
            # The browser notes the answer 409 to the first choice, and nothing else.
            assert len(tab.errors) == 1
            tab.errors.clear()


def test_k_is_counted_while_the_slider_moves_and_as_the_server_says(page: Any) -> None:
    slider = page.locator(".top-k input")
    slider.evaluate("own => { own.value = 7; own.dispatchEvent(new Event('input')); }")
    assert page.inner_text(".kept") == "7 of 12 matches kept"
    slider.evaluate("own => own.dispatchEvent(new Event('change'))")
    wait_for(page, "!strapView.page.choices.pending")
    assert page.inner_text(".kept") == "7 of 12 matches kept"
    slider.evaluate("own => { own.value = 4; own.dispatchEvent(new Event('input')); }")
    assert page.inner_text(".kept").split("\n") == ["4 of 12 matches kept", "2 queries keep none"]
    page.keyboard.press("u")
    wait_for(page, "strapView.page.choices.now.kept === 12")


def test_dragging_a_border_gives_new_segments_until_it_is_put_back(page: Any) -> None:
    before = page.evaluate("strapView.page.rows.contents.queries")
    handle = page.locator(".border").first
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 25, y, steps=5)
    page.mouse.up()
    wait_for(page, "strapView.page.rows.contents.draft")
    draft = page.evaluate("strapView.page.rows.contents")
    assert draft["queries"][0]["stop"] == draft["draft"]["boundaries"][0] > before[0]["stop"]
    resting = "Draft: keep or discard the borders before you make choices."
    assert page.inner_text(".kept") == resting
    for key in ("r", "a"):
        page.evaluate("document.getElementById('notice').textContent = ''")
        page.keyboard.press(key)
        assert page.text_content("#notice") == resting
    page.get_by_role("button", name="Discard them").click()
    wait_for(page, "!strapView.page.rows.contents.draft")
    assert page.evaluate("strapView.page.rows.contents.queries") == before
    assert page.inner_text(".kept") == "12 of 12 matches kept"


def test_a_border_moves_by_keyboard(page: Any) -> None:
    before = page.evaluate("strapView.page.rows.contents.queries[0].stop")
    page.locator(".border").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    wait_for(page, "strapView.page.rows.contents.draft")
    assert page.evaluate("strapView.page.rows.contents.queries[0].stop") == before + 2
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Border 1 of demo_0"
    page.get_by_role("button", name="Discard them").click()
    wait_for(page, "!strapView.page.rows.contents.draft")


def test_segments_that_leave_frames_out_have_no_borders_to_move(
    browser: Any, tmp_path: Path
) -> None:
    planted = make_planted(tmp_path / "data")
    spans = [("demo_0", 4, 20), ("demo_0", 26, 80), ("demo_1", 0, 40), ("demo_1", 40, 90)]
    rows = [{"trajectory": key, "start": start, "stop": stop} for key, start, stop in spans]
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"segments": rows}))
    cut = Segmentation(method="manual", boundaries=file)
    options = RetrievalOptions("pixels", 12, cut, augmented="none")
    run = run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)
    with serve(run.path, cache=tmp_path) as found, Tab(browser, found, ready=READY) as page:
        gaps, tiled = page.locator(".timeline").all()
        assert "leave frames out or overlap" in gaps.locator(".timeline-note").inner_text()
        assert gaps.locator(".border").count() == tiled.locator(".timeline-note").count() == 0
        tiled.locator(".border").focus()
        page.keyboard.press("ArrowRight")
        wait_for(page, "strapView.page.rows.contents.draft")
        queries = page.evaluate("strapView.page.rows.contents.queries")
        moved = [(query["start"], query["stop"]) for query in queries]
        assert moved == [(4, 20), (26, 80), (0, 41), (41, 90)]


def test_a_bar_filters_and_lifts_the_filter(page: Any) -> None:
    page.keyboard.press("q")
    assert page.inner_text(".subheading") == "12 matches"
    bars = page.locator(".chart").nth(2).locator(".bar")
    counts = [int(bar.get_attribute("aria-label").split(": ")[1].split()[0]) for bar in bars.all()]
    place = next(place for place, count in enumerate(counts) if 0 < count < 12)
    bars.nth(place).click()
    assert page.inner_text(".subheading") == f"{counts[place]} of 12 matches"
    assert page.locator(".card").count() == counts[place]
    bars.nth(place).click()
    assert page.inner_text(".subheading") == "12 matches"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_is_wider_than_the_screen(
    browser: Any, address: str, tmp_path: Path, screen: str, scheme: str
) -> None:
    """Take a picture too, into $STRAP_SCREENSHOTS where that is set."""
    folder = Path(os.environ.get("STRAP_SCREENSHOTS", tmp_path))
    width, height = SCREENS[screen]
    with Tab(browser, address, ready=READY, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(500)
        page.screenshot(path=folder / f"{screen}-{scheme}.png")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = page.evaluate(
            "[...document.querySelectorAll('.pane.is-open *')]"
            ".filter((own) => own.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert screen == "wide" or wide == 0


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, out of its npm package."""
    folder = tmp_path_factory.mktemp("axe")
    if (npm := shutil.which("npm")) is None:
        pytest.skip("no npm is installed, which fetches axe-core")
    words = [npm, "pack", "--silent", "axe-core@4"]
    if subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode:
        pytest.skip("npm cannot fetch axe-core")
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as package:
        found = package.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_nothing_keeps_anybody_out(
    browser: Any, address: str, axe: str, screen: str, scheme: str
) -> None:
    width, height = SCREENS[screen]
    with Tab(browser, address, ready=READY, color_scheme=scheme) as page:
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(300)
        page.evaluate(axe)
        found = page.evaluate("axe.run().then((results) => results.violations)")
        grave = [rule["id"] for rule in found if rule["impact"] in {"serious", "critical"}]
        assert grave == []
