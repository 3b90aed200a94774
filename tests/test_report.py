from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import h5py
import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image, ImageSequence

from strap.choices import change_choices
from strap.cli import main
from strap.datasets import Dataset, open_dataset
from strap.embeddings import embed
from strap.errors import StrapError
from strap.features.cameras import compared_cameras, corresponding_camera
from strap.figures.animation import write_moving_picture
from strap.figures.retrieval import contact_sheet, match_distribution, pair_frames, write_figures
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run, open_run
from strap.synthetic import Planted
from strap.types import Array, Matches, Trajectory
from strap.view.contents import Sources
from strap.view.run_views import RunView
from strap.view.single_file import address_of, write_single_file


@pytest.fixture(scope="module")
def made(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; read only."""
    folder = tmp_path_factory.mktemp("made")
    options = RetrievalOptions(encoder="pixels", top_k=12)
    out, stores = folder / "run", folder / "stores"
    return run_retrieval(planted.target, [planted.prior], out, options, stores=stores)


@pytest.fixture
def run(made: Run, tmp_path: Path) -> Run:
    """A copy of it, to be changed."""
    return open_run(shutil.copytree(made.path, tmp_path / "run"))


def answers_of(page: Path) -> dict[str, dict[str, object]]:
    found = re.search(r'id="strap-data">(.*?)</script>', page.read_text(), re.S)
    assert found
    answers: dict[str, dict[str, object]] = json.loads(found[1])
    return answers


class TestSingleFile:
    def test_holds_everything(self, run: Run) -> None:
        facts = [("skill precision", "75 %")]
        page = write_single_file(run.path / "report.html", RunView.open(run.path), facts=facts)
        assert (page.n_filmed, page.n_matches) == (12, 12)
        text = page.path.read_text()
        assert not re.search(r'(src|href)="(?!data:)', text)  # nothing is fetched
        assert "Content-Security-Policy" in text
        answers = answers_of(page.path)
        contents = answers["contents"]
        assert contents["read_only"]
        assert ["skill precision", "75 %"] in contents["facts"]
        for row in range(12):
            assert answers[address_of("alignment", {"match": row})]["path"]
        films = [answer for address, answer in answers.items() if address.startswith("film?")]
        assert all(str(film["jpeg"]).startswith("data:image/jpeg;base64,") for film in films)

    def test_is_no_larger_than_is_said(self, run: Run) -> None:
        view = RunView.open(run.path)
        whole = write_single_file(run.path / "whole.html", view)
        size = sum(len(str(a.get("jpeg", ""))) for a in answers_of(whole.path).values())
        half = write_single_file(run.path / "half.html", view, max_bytes=size // 2)
        assert 0 < half.n_filmed < 12
        kept = answers_of(half.path)
        assert sum(len(str(a.get("jpeg", ""))) for a in kept.values()) <= size // 2
        assert len(kept["contents"]["matches"]["query"]) == 12  # in words all of them
        assert address_of("alignment", {"match": 0}) in kept  # the best first
        assert write_single_file(run.path / "none.html", view, max_bytes=0).n_filmed == 0

    def test_rejected_matches_are_filmed_last(self, run: Run) -> None:
        change_choices(run.path, run.matches, {"reject": [0]})
        page = write_single_file(run.path / "r.html", RunView.open(run.path), max_bytes=60_000)
        assert 0 < page.n_filmed < 12
        assert address_of("alignment", {"match": 0}) not in answers_of(page.path)

    def test_nothing_to_report(self, run: Run) -> None:
        Matches(()).to_parquet(run.path / "matches.parquet")
        with pytest.raises(StrapError, match="has no matches to report"):
            write_single_file(run.path / "report.html", RunView.open(run.path))

    def test_addresses_are_those_of_the_page(self) -> None:
        # What URLSearchParams makes of the same parameters (static/data.js).
        parameters = {"trajectory": "a b/ä&*~-._", "place": "target", "start": 3}
        assert address_of("film", parameters) == (
            "film?place=target&start=3&trajectory=a+b%2F%C3%A4%26*%7E-._"
        )


class TestFigureDetails:
    def test_a_folder_that_cannot_be_made_is_one_line(
        self, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (run.path / "file").touch()
        assert main(["figures", str(run.path), "--out", str(run.path / "file/figures")]) == 2
        assert "choose an output folder that you may write to" in capsys.readouterr().err

    def test_no_costs_of_a_method_without_costs(self, run: Run) -> None:
        sources = Sources.of(run)
        priors = run.matches.locate(sources.priors)
        free = Matches(tuple(replace(match, cost=0.0) for match in run.matches))
        for matches, shown in ((run.matches, True), (free, False)):
            figure = contact_sheet(matches, sources.target, priors, "agentview_rgb")
            titles = [axes.get_title() for axes in figure.findobj(Axes)]
            assert any("a frame" in title for title in titles) == shown
            assert any(title.startswith("#1") for title in titles)

    def test_matches_are_counted_in_whole_numbers(self, run: Run) -> None:
        priors = run.matches.locate(Sources.of(run).priors)
        lengths = {
            (m.dataset, m.segment.trajectory_id): priors[m.dataset][m.segment.trajectory_id].length
            for m in run.matches
        }
        for axes in match_distribution(run.matches, lengths).axes:
            assert all(float(tick).is_integer() for tick in axes.get_yticks())


class TestOtherCameras:
    """Target and prior name their cameras differently; the prior's second one was compared."""

    @pytest.fixture
    def run(self, own_planted: Planted, tmp_path: Path) -> Run:
        with h5py.File(own_planted.prior, "r+") as file:
            for demo in file["data"].values():
                images = demo["obs/agentview_rgb"][:]
                demo["obs/ext1_rgb"], demo["obs/ext2_rgb"] = 255 - images, images
                del demo["obs/agentview_rgb"]
        store, out = tmp_path / "store", tmp_path / "run"
        embed(open_dataset(own_planted.prior), "pixels", store, cameras=["ext2_rgb"])
        options = RetrievalOptions(top_k=12, augmented="none")
        return run_retrieval(own_planted.target, [store], out, options)

    @pytest.fixture
    def shown(self, monkeypatch: pytest.MonkeyPatch) -> set[str]:
        """The cameras of which frames were read."""
        cameras: set[str] = set()
        read = Trajectory.frames

        def frames(trajectory: Trajectory, camera: str, *ends: int) -> Array:
            cameras.add(camera)
            return read(trajectory, camera, *ends)

        monkeypatch.setattr(Trajectory, "frames", frames)
        return cameras

    def test_the_page_shows_what_was_compared(self, run: Run, shown: set[str]) -> None:
        view = RunView.open(run.path)
        assert view.contents()["cameras"] == ["agentview_rgb"]
        assert write_single_file(run.path / "report.html", view).n_filmed == len(run.matches)
        assert shown == {"agentview_rgb", "ext2_rgb"}

    @pytest.mark.parametrize("words", [["--formats", "png"], ["--moving", "a.gif"]])
    def test_figures_show_what_was_compared(
        self, run: Run, shown: set[str], words: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(run.path)
        assert main(["figures", str(run.path), *words]) == 0
        assert shown == {"agentview_rgb", "ext2_rgb"}

    def test_a_recording_shows_what_was_compared(self, run: Run, shown: set[str]) -> None:
        pytest.importorskip("rerun", reason="the extra `rerun` is not installed")
        assert main(["figures", str(run.path), "--rerun", str(run.path / "a.rrd")]) == 0
        assert shown == {"agentview_rgb", "ext2_rgb"}

    def test_where_the_run_does_not_say(self, run: Run) -> None:
        prior = Sources.of(run).priors[0]
        for told in (None, {}, {prior.name: ["fused"]}, {prior.name: [3]}, {prior.name: []}, "x"):
            manifest = {**run.manifest, "store_cameras": told}
            assert compared_cameras(manifest, prior) == ("ext1_rgb", "ext2_rgb")


def test_each_camera_is_shown_beside_the_one_it_was_compared_with(planted: Planted) -> None:
    target, prior = open_dataset(planted.target), open_dataset(planted.prior)
    first = prior[prior.ids[0]]
    (image,) = first.cameras.values()
    seen = replace(first, cameras=dict.fromkeys(("a", "b", "c"), image))

    class Prior:
        name, ids = prior.name, ["demo_0"]

        def __getitem__(self, _: str) -> Trajectory:
            return seen

    told = {target.name: ["agentview_rgb"], prior.name: ["b"]}
    manifest = {"store_cameras": told, "arguments": {"cameras": []}}
    cameras = [
        corresponding_camera(manifest, target, cast(Dataset, Prior()), name)
        for name in ("agentview_rgb", "c", "wrist")
    ]
    assert cameras == ["b", "c", "b"]


def test_retrieve_writes_the_page(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    words += ["--encoder", "pixels", "--top-k", "4", "--augmented", "none"]
    assert main([*words, "--out", str(tmp_path / "with")]) == 0
    assert f"report: {tmp_path / 'with' / 'report.html'}" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "without"), "--report", "none"]) == 0
    assert not (tmp_path / "without" / "report.html").exists()
    # A run that is made again does not keep the page of the old one.
    changed = [*words, "--out", str(tmp_path / "with"), "--overwrite", "--report", "none"]
    assert main([*changed, "--metric", "cosine"]) == 0
    assert not (tmp_path / "with" / "report.html").exists()
    capsys.readouterr()
    assert main(["report", str(tmp_path / "without"), "--megabytes", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["films"] == 0


class TestFigures:
    def test_files_of_each_kind(self, run: Run) -> None:
        sources = Sources.of(run)
        files = write_figures(run.path / "figures", run, sources.target, sources.priors)
        assert {file.name for file in files} == {
            f"{name}.{kind}"
            for name in ("matches", "tasks", "positions")
            for kind in ("pdf", "png")
        }
        for file in files:
            if file.suffix == ".pdf":
                assert file.read_bytes().startswith(b"%PDF")
                continue
            with Image.open(file) as picture:
                assert min(picture.size) > 100
                assert np.asarray(picture.convert("L")).std() > 5  # something is drawn

    def test_nothing_to_draw(self, run: Run) -> None:
        sources = Sources.of(run)
        empty = replace(run, matches=Matches(()))
        with pytest.raises(StrapError, match="has no matches to draw"):
            write_figures(run.path / "figures", empty, sources.target, sources.priors)

    def test_unknown_formats(self, run: Run) -> None:
        sources = Sources.of(run)
        with pytest.raises(StrapError, match="unknown format of figures 'jpg'"):
            write_figures(run.path, run, sources.target, sources.priors, formats=["jpg"])

    @pytest.mark.parametrize("suffix", [".webp", ".gif"])
    def test_a_moving_picture_moves(self, run: Run, suffix: str) -> None:
        sources = Sources.of(run)
        file = run.path / f"moving{suffix}"
        write_moving_picture(file, run, sources.target, sources.priors)
        with Image.open(file) as picture:
            assert picture.n_frames > 10
            first = np.asarray(picture.convert("RGB"), float)
            picture.seek(picture.n_frames // 2)
            assert np.abs(np.asarray(picture.convert("RGB"), float) - first).max() > 30

    def test_the_frames_of_a_gif_share_their_colours(self, run: Run) -> None:
        sources = Sources.of(run)
        write_moving_picture(
            run.path / "moving.gif", run, sources.target, sources.priors, queries=1, ranks=1
        )
        with Image.open(run.path / "moving.gif") as picture:
            frames = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(picture)]
        assert len(np.unique(np.concatenate(frames).reshape(-1, 3), axis=0)) <= 256

    def test_a_recording_for_rerun(self, run: Run) -> None:
        pytest.importorskip("rerun", reason="the extra `rerun` is not installed")
        file = run.path / "matches.rrd"
        assert main(["figures", str(run.path), "--rerun", str(file), "--matches", "1"]) == 0
        words = [sys.executable, "-m", "rerun", "rrd", "print", str(file)]
        private = {**os.environ, "DO_NOT_TRACK": "1"}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=private)
        for entity in ("/query_01/demonstration/camera", "/query_01/match_01/end_effector"):
            assert entity in done.stdout

    def test_one_at_a_time(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["figures", str(run.path), "--moving", "a.webp", "--rerun", "a.rrd"]
        assert main(words) == 2
        assert "--moving and --rerun cannot be combined" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--rows", "2"], "--rows is for --moving: leave it out"),
            (["--matches", "2"], "--matches is for --moving and --rerun: leave it out"),
            (["--moving", "a.gif", "--rows", "0"], "--rows is 0: it must be at least 1"),
            (["--moving", "a.gif", "--matches", "-1"], "--matches is -1: it must be at least 1"),
            (["--moving", "a.gif", "--formats", "pdf"], "--formats is for figures"),
            (["--moving", "a.mp4"], "unknown kind of animation '.mp4'"),
            (["--rerun", "a.mp4"], "unknown kind of recording '.mp4'"),
        ],
    )
    def test_what_is_wrong_is_named(
        self, run: Run, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["figures", str(run.path), *words]) == 2
        assert said in capsys.readouterr().err

    def test_choices_are_kept_to(self, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        change_choices(run.path, run.matches, {"reject": list(range(12))})
        assert main(["figures", str(run.path), "--formats", "png"]) == 2
        assert "--choices ignore" in capsys.readouterr().err
        assert main(["figures", str(run.path), "--formats", "png", "--choices", "ignore"]) == 0

    def test_frames_beside_each_other_are_pairs_of_the_path(self) -> None:
        path = [(0, 0), (0, 1), (1, 2), (3, 3), (4, 5)]  # it jumps over 2, and over 4 of the match
        shown = np.array([0, 1, 2, 3, 4])
        np.testing.assert_array_equal(pair_frames(path, shown, 5, 6), [1, 2, 2, 3, 5])
        np.testing.assert_array_equal(pair_frames(None, shown, 5, 9), [0, 2, 4, 6, 8])
