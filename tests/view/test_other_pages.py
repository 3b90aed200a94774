"""Comparisons, evaluations and datasets in a real browser, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.view.browsing import Tab, needs_browser, open_browser, serve, wait_for

from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.synthetic import Planted

pytestmark = needs_browser

STEPS = {"bc": 40, "strap": 60}
"""how long the rollouts of each policy are"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as found:
        yield found


def _write_evaluation(out: Path, steps: int) -> Path:
    """Write a filmed rollout from state 0 and one from state 1 that was not filmed."""
    av = pytest.importorskip("av")
    (out / "videos").mkdir(parents=True)
    with av.open(str(out / "videos" / "0.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=20)
        stream.width = stream.height = 64
        for frame in range(steps):
            image = np.full((64, 64, 3), 4 * frame, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    rows = [
        {"state": 0, "success": True, "steps": steps, "goals": {"mug <b>lifted</b>": 20}},
        {"state": 1, "success": False, "steps": steps, "goals": {}},
    ]
    rows[0]["video"] = "videos/0.mp4"
    (out / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = {"suite": "libero_10", "task": "lift the mug", "horizon": 100}
    (out / "evaluation.json").write_text(json.dumps(about))
    return out


def test_a_comparison_marks_what_only_one_run_has(
    browser: Any, run: Run, planted: Planted, tmp_path: Path
) -> None:
    options = RetrievalOptions(encoder="pixels", top_k=30, augmented="none")
    stores = tmp_path / "stores"
    more = run_retrieval(planted.target, [planted.prior], tmp_path / "more", options, stores=stores)
    with (
        serve(run.path, more.path, cache=tmp_path / "cache") as address,
        Tab(browser, address, ready="window.strapView?.player.shown") as page,
    ):
        columns = page.locator(".run-column")
        assert columns.locator("h3").all_inner_texts() == ["my-run", "more"]
        assert columns.nth(0).get_by_text("only here", exact=True).count() == 0
        found = page.evaluate("strapView.page.pairings[0].only.map((rows) => rows.size)")
        assert found[0] == 0 < found[1]
        assert columns.nth(1).inner_text().count("only here") == found[1]
        assert page.locator(".card-quality:visible").count() == 0  # thirds of each run differ
        page.get_by_role("button", name="About").click()
        assert page.locator("dialog[open] h3").all_inner_texts() == ["my-run", "more"]
        assert page.locator("dialog[open] dt", has_text="top-k").count() == 2
        page.keyboard.press("Escape")
        page.keyboard.press("]")
        wait_for(page, "strapView.state.run === '1' && strapView.player.pairs.length > 1")
        assert page.locator(".run-column").nth(1).locator(".card.is-chosen").count() == 1


def test_rollouts_are_shown_at_the_same_step(browser: Any, tmp_path: Path) -> None:
    places = [_write_evaluation(tmp_path / name, steps) for name, steps in STEPS.items()]
    ready = "window.strapView?.page.sides.every((side) => side.video.readyState >= 2)"
    with (
        serve(*places, cache=tmp_path / "cache") as address,
        Tab(browser, address, ready=ready) as page,
    ):
        page.get_by_role("button", name="mug <b>lifted</b> step 20").first.click()
        wait_for(page, "strapView.page.sides.every((side) => !side.video.seeking)")
        times = page.evaluate("strapView.page.sides.map((side) => side.video.currentTime)")
        assert times == pytest.approx([1, 1], abs=0.05)
        page.keyboard.press("ArrowDown")
        assert page.inner_text(".pane:nth-child(2) h2") == "State 1"
        assert page.get_by_text("No video of this state.").count() == 2
        assert page.locator(".outcome").all_inner_texts() == [
            "✓ success",
            "✓ success",
            "✕ failure",
            "✕ failure",
        ]


def test_a_dataset_shows_its_episodes(browser: Any, planted: Planted, tmp_path: Path) -> None:
    with (
        serve(planted.prior, cache=tmp_path / "cache") as address,
        Tab(browser, address, ready="window.strapView?.player.shown") as page,
    ):
        assert page.locator(".episode-list li").count() == 12
        page.keyboard.press("/")
        page.keyboard.type("demo_7")
        assert page.locator(".episode-list li").count() == 1
        page.locator(".episode-list button").click()
        wait_for(page, "strapView.player.shown")
        assert "demo_7" in page.inner_text(".pane:nth-child(2) .subheading")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("strapView.player.shown.step") == 1
