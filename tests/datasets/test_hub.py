"""Datasets by the names of their repositories, from a hub on 127.0.0.1 asked by the real client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants as client
import numpy as np
import pytest
from tests.datasets.hub_server import Hub, serving_hub
from tests.datasets.writers import episodes, write_lerobot_v21

import strap
from strap.cli import main
from strap.datasets.hub import HubName, find_hub_name, find_snapshot
from strap.datasets.lerobot import write_lerobot
from strap.embeddings import is_embedded
from strap.errors import StrapError
from strap.inspection import inspect
from strap.runs import open_run
from strap.store import open_store
from strap.training.data import open_whole_datasets
from strap.view.opening import open_subject

NAME = "team/mugs"
LENGTHS = (12, 15, 11, 13)
META_V21 = ["meta/episodes.jsonl", "meta/info.json", "meta/tasks.jsonl"]


def table(episode: int) -> str:
    return f"data/chunk-000/file-{episode:03d}.parquet"


def video(camera: str, episode: int) -> str:
    return f"videos/observation.images.{camera}/chunk-000/file-{episode:03d}.mp4"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same episodes as v2.1 and as v3.0, where each has files of its own too."""
    root = tmp_path_factory.mktemp("repositories")
    v21 = write_lerobot_v21(root / "v21", episodes(LENGTHS))
    small = {"data_files_size_in_mb": 1e-6, "video_files_size_in_mb": 1e-6}
    write_lerobot(root / "v3", strap.open_dataset(v21), **small)
    return root


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub without datasets, and a cache of it without files."""
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "strap"))
    monkeypatch.setattr(client, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(client, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with serving_hub() as server:
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(client, "ENDPOINT", server.address)
        monkeypatch.setattr(client, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


@pytest.fixture
def mugs(hub: Hub, written: Path) -> str:
    """The commit of a dataset of v3.0."""
    return hub.add(NAME, written / "v3")


def unplug(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Take the hub away: by the user's wish, or because nobody answers."""
    if how == "HF_HUB_OFFLINE":
        monkeypatch.setattr(client, "HF_HUB_OFFLINE", True)
    else:
        monkeypatch.setattr(client, "ENDPOINT", "http://127.0.0.1:9")


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of a command that fails."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("lerobot/pusht", HubName("lerobot/pusht")),
            ("lerobot/pusht@v2.1", HubName("lerobot/pusht", "v2.1")),
            ("lerobot/pusht@refs/pr/3", HubName("lerobot/pusht", "refs/pr/3")),
            ("a-b/c_d.e", HubName("a-b/c_d.e")),
            ("pusht", None),
            ("data/pusht/train", None),
            ("/data/pusht", None),
            ("../pusht", None),
            ("data/..", None),
            ("a--b/c", None),
            ("lerobot/pusht@../../x", None),
            ("data/mugs.hdf5", None),
            ("data/mugs.zarr.zip", None),
        ],
    )
    def test_what_is_a_name(self, text: str, name: HubName | None) -> None:
        assert find_hub_name(Path(text)) == name

    def test_a_local_path_wins(self, hub: Hub, mugs: str, written: Path, tmp_path: Path) -> None:
        shutil.copytree(written / "v21", tmp_path / NAME)
        assert strap.open_dataset(NAME).format == "lerobot-v2.1"
        assert hub.requests == []

    def test_a_snapshot_is_known_by_its_path(self, mugs: str) -> None:
        found = find_snapshot(strap.open_dataset(NAME).path)
        assert found is not None
        assert (found.repo, found.commit) == (NAME, mugs)
        assert find_snapshot(found.path.parent) is None
        assert find_snapshot(found.path / "meta") is None


class TestFetching:
    @pytest.mark.parametrize("version", ["v21", "v3"])
    def test_the_whole_is_what_was_uploaded(self, hub: Hub, written: Path, version: str) -> None:
        hub.add(NAME, written / version)
        fetched, local = strap.open_dataset(NAME), strap.open_dataset(written / version)
        assert fetched.ids == local.ids
        for one, other in zip(fetched, local, strict=True):
            assert one.instruction == other.instruction
            np.testing.assert_array_equal(one.actions[:], other.actions[:])
            for camera in other.cameras:
                np.testing.assert_array_equal(one.frames(camera), other.frames(camera))
        files = [f for f in (written / version).rglob("*") if f.is_file()]
        assert hub.files() == sorted(f.relative_to(written / version).as_posix() for f in files)

    def test_opening_fetches_meta_alone(self, hub: Hub, written: Path) -> None:
        hub.add(NAME, written / "v21")
        dataset = strap.open_dataset(NAME)
        assert hub.files() == META_V21
        assert (len(dataset), dataset.label) == (len(LENGTHS), NAME)

    def test_what_is_read_is_fetched(self, hub: Hub, mugs: str) -> None:
        dataset = strap.open_dataset(NAME)
        hub.requests.clear()
        assert dataset["episode_000002"].proprioception["observation.state"][:].shape == (11, 5)
        assert hub.files() == [table(2)]
        dataset["episode_000002"].frames("wrist", 3, 5)
        assert hub.files() == [table(2), video("wrist", 2)]

    def test_episodes_and_cameras_decide(self, hub: Hub, mugs: str) -> None:
        words = ["embed", NAME, "--encoder", "pixels", "--out", "store"]
        assert main([*words, "--episodes", "1:3", "--cameras", "front"]) == 0
        fetched = [f for f in hub.files() if not f.startswith("meta/")]
        assert fetched == [table(1), table(2), video("front", 1), video("front", 2)]

    def test_tasks_decide(self, hub: Hub, mugs: str) -> None:
        words = ["segment", NAME, "--out", "segments.json", "--segmentation", "full"]
        assert main([*words, "--tasks", "drawer"]) == 0
        fetched = [f for f in hub.files() if not f.startswith("meta/")]
        assert fetched == [table(1), table(3)]  # and no video

    def test_part_then_more(self, hub: Hub, mugs: str) -> None:
        words = ["embed", NAME, "--encoder", "pixels", "--cameras", "front", "--out", "store"]
        assert main([*words, "--episodes", "0"]) == 0
        part = strap.open_dataset(NAME)
        assert not is_embedded(open_store("store"), part)
        hub.requests.clear()
        assert main(words) == 0
        rest = [1, 2, 3]
        assert hub.files() == [*map(table, rest), *(video("front", e) for e in rest)]
        store = open_store("store")
        assert (len(store), store.complete) == (4, True)
        assert is_embedded(store, strap.open_dataset(NAME))
        assert part.fingerprint() == strap.open_dataset(NAME).fingerprint()
        assert find_snapshot(Path(store.dataset)) == find_snapshot(part.path)

    def test_nothing_is_embedded_again_because_more_is_here(self, hub: Hub, mugs: str) -> None:
        words = ["embed", NAME, "--encoder", "pixels", "--cameras", "front", "--out", "store"]
        assert main(words) == 0
        shards = {file: file.stat().st_mtime_ns for file in Path("store").rglob("*.npy")}
        strap.open_dataset(NAME).fetch()  # the other camera
        Path("store/manifest.json").unlink()
        assert main(words) == 0
        assert {file: file.stat().st_mtime_ns for file in Path("store").rglob("*.npy")} == shards

    def test_the_same_again_asks_for_no_file(self, hub: Hub, mugs: str) -> None:
        strap.open_dataset(NAME).fetch()
        hub.requests.clear()
        dataset = strap.open_dataset(NAME)
        dataset.fetch()
        dataset["episode_000000"].frames("front")
        assert hub.files() == []

    def test_a_dropped_connection_is_taken_up(
        self, hub: Hub, mugs: str, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "DOWNLOAD_CHUNK_SIZE", 500)
        hub.dropped[table(0)] = 1000
        dataset = strap.open_dataset(NAME)
        dataset["episode_000000"].actions[:]
        assert hub.ranges == ["bytes=1000-"]
        assert (dataset.path / table(0)).read_bytes() == (written / "v3" / table(0)).read_bytes()

    def test_an_interrupted_fetch_goes_on(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = strap.open_dataset(NAME)
        dataset.select(dataset.ids[:2]).fetch()
        hub.status = 500
        with pytest.raises(
            StrapError,
            match=r"cannot fetch .*HTTP status 500.*try again later; "
            r"files already fetched are kept",
        ):
            dataset.fetch()
        hub.status = 200
        hub.requests.clear()
        dataset.fetch()
        rest = [2, 3]
        cameras = ("front", "wrist")
        videos = [video(camera, episode) for camera in cameras for episode in rest]
        assert hub.files() == [*map(table, rest), *videos]

    def test_progress_ends_with_all(self, hub: Hub, mugs: str) -> None:
        seen: list[tuple[str, int, int]] = []
        dataset = strap.open_dataset(NAME, progress=lambda *told: seen.append(told))
        dataset.fetch(progress=lambda *told: seen.append(told))
        assert {what for what, _, _ in seen} == {f"fetching {NAME} (MB)"}
        assert seen[-1][1] == seen[-1][2] > 0

    def test_a_full_disk_is_told_before(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = strap.open_dataset(NAME)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
        with pytest.raises(StrapError, match=r"only 0.0 GB are free.*--episodes.*HF_HOME"):
            dataset.fetch()

    def test_a_cache_that_cannot_be_written(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr(client, "HF_HUB_CACHE", str(tmp_path / "file/cache"))
        with pytest.raises(StrapError, match=r"make '.*/file/cache' writable.*HF_HOME"):
            strap.open_dataset(NAME)

    def test_a_dataset_that_was_removed_while_it_was_read(self, hub: Hub, mugs: str) -> None:
        dataset = strap.open_dataset(NAME)
        del hub.repositories[NAME]
        with pytest.raises(StrapError, match=r"cannot fetch .*file-000.* is now private"):
            dataset["episode_000000"].actions[:]

    def test_metadata_names_no_file_outside(
        self, hub: Hub, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        changed = shutil.copytree(written / "v21", tmp_path / "changed")
        info = json.loads((changed / "meta/info.json").read_text())
        info["data_path"] = "../../{episode_index}.parquet"
        (changed / "meta/info.json").write_text(json.dumps(info))
        hub.add(NAME, changed)
        dataset = strap.open_dataset(NAME)
        with pytest.raises(StrapError, match="outside the dataset's folder"):
            dataset.fetch()
        with pytest.raises(StrapError, match="outside the dataset's folder"):
            dataset["episode_000000"].actions[:]
        assert hub.files() == META_V21


class TestCommits:
    def test_a_revision_is_a_commit(self, hub: Hub, written: Path) -> None:
        older = hub.add(NAME, written / "v21", "v2.1")
        newer = hub.add(NAME, written / "v3")
        opened = {
            revision: strap.open_dataset(f"{NAME}@{revision}")
            for revision in ("main", "v2.1", older, newer)
        }
        assert {revision: d.path.name for revision, d in opened.items()} == {
            "main": newer,
            "v2.1": older,
            older: older,
            newer: newer,
        }
        assert opened["v2.1"].format == "lerobot-v2.1"
        assert opened["main"].fingerprint() != opened["v2.1"].fingerprint()

    def test_a_new_commit_is_another_dataset(self, hub: Hub, written: Path) -> None:
        hub.add(NAME, written / "v21")
        before = strap.open_dataset(NAME)
        hub.add(NAME, written / "v21")
        after = strap.open_dataset(NAME)
        assert before.name != after.name
        assert before.fingerprint() != after.fingerprint()

    def test_a_commit_that_was_removed_from_the_cache(self, hub: Hub, mugs: str) -> None:
        path = strap.open_dataset(NAME).path
        shutil.rmtree(path)
        with pytest.raises(
            StrapError, match=rf"fetch it again, with `strap inspect {NAME}@{mugs}`"
        ):
            strap.open_dataset(path)


class TestOffline:
    @pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "nobody answers"])
    def test_what_is_in_the_cache_is_used(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        before = strap.open_dataset(NAME)
        before.select(["episode_000001"]).fetch(["front"])
        unplug(monkeypatch, how)
        with warnings.catch_warnings(record=True) as notes:
            dataset = strap.open_dataset(NAME)
        assert dataset.name == before.name
        assert len(notes) == (how == "nobody answers")
        assert len(dataset["episode_000001"].frames("front")) == LENGTHS[1]
        assert strap.open_dataset(f"{NAME}@{mugs}").name == before.name

    @pytest.mark.filterwarnings("ignore:the hub does not say")
    @pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "nobody answers"])
    def test_a_part_is_never_taken_for_the_whole(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        before = strap.open_dataset(NAME)
        before.select(["episode_000001"]).fetch(["front"])
        unplug(monkeypatch, how)
        lacking = (
            rf"is only partly here, without {table(0)}.* on a machine with a network run `hf "
            rf"download {NAME} --repo-type dataset --revision {mugs}`, and copy the folder "
            r"datasets--team--mugs of its cache into '.*/cache'"
        )
        with pytest.raises(StrapError, match=lacking):
            strap.open_dataset(NAME)["episode_000000"].actions[:]
        with pytest.raises(StrapError, match=lacking):
            strap.open_dataset(NAME).fetch(["front"])

    def test_metadata_that_was_not_finished_is_not_used(
        self, hub: Hub, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = hub.add(NAME, written / "v21")
        for file in META_V21:
            if file != "meta/info.json":
                hub.dropped[file] = 0
        monkeypatch.setattr("time.sleep", lambda _: setattr(hub, "status", 500))
        with pytest.raises(StrapError, match="cannot fetch"):
            strap.open_dataset(NAME)
        unplug(monkeypatch, "HF_HUB_OFFLINE")
        for name in (NAME, f"{NAME}@{commit}"):
            with pytest.raises(StrapError, match="not in the cache"):
                strap.open_dataset(name)

    @pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "nobody answers"])
    def test_without_a_cache_both_readings_are_told(
        self,
        hub: Hub,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        how: str,
    ) -> None:
        unplug(monkeypatch, how)
        line = told(["inspect", "data/mugs@v2.1"], capsys)
        assert "'data/mugs@v2.1' is not a file or folder here" in line
        assert "the hub cannot be reached" in line
        assert ("HF_HUB_OFFLINE is set" in line) == (how == "HF_HUB_OFFLINE")
        command = "hf download data/mugs --repo-type dataset --revision v2.1 --local-dir mugs"
        assert f"check the path, or on a machine with a network run `{command}`" in line


class TestRefusals:
    def test_a_mistyped_path(self, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
        line = told(["inspect", "data/mugs"], capsys)
        assert "no such dataset: 'data/mugs' is not a file or folder here, and http" in line
        assert "has no dataset of that name that you may read: check the path or the name" in line

    def test_what_is_no_name_is_a_path(self, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no such dataset: 'mugs'; check the path" in told(["inspect", "mugs"], capsys)
        assert hub.requests == []

    def test_a_gated_dataset(
        self,
        hub: Hub,
        mugs: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        hub.repositories[NAME].is_gated = True
        line = told(["inspect", NAME], capsys)
        assert "is gated on the hub: ask for access at http://127.0.0.1" in line
        assert "hf auth login" in line
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert main(["inspect", NAME]) == 0
        assert "hf_secret" not in "".join(capsys.readouterr())

    def test_an_unknown_revision(
        self, hub: Hub, mugs: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = told(["inspect", f"{NAME}@v9"], capsys)
        assert f"'{NAME}' has no revision 'v9': name a branch, a tag or a commit" in line

    def test_a_dataset_of_another_format(
        self, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "files").mkdir()
        (tmp_path / "files/demo.hdf5").write_bytes(b"")
        hub.add(NAME, tmp_path / "files")
        line = told(["inspect", NAME], capsys)
        assert "has no meta/info.json: only LeRobot datasets are fetched by name" in line
        assert f"hf download {NAME} --repo-type dataset --local-dir mugs" in line

    def test_a_hub_that_is_overloaded(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("time.sleep", lambda _: None)
        hub.head_status = 503
        with pytest.raises(
            StrapError, match=r"cannot fetch meta/.* \(HTTP status 503\): try again"
        ):
            strap.open_dataset(NAME)

    def test_without_the_client_what_is_here_is_read(
        self, hub: Hub, mugs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = strap.open_dataset(NAME).path
        strap.open_dataset(NAME).select(["episode_000002"]).fetch()
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        dataset = strap.open_dataset(path)
        assert len(dataset["episode_000002"].frames("wrist")) == LENGTHS[2]
        with pytest.warns(match="skipped 3 of 4 episodes"):
            assert len(strap.open_dataset(path, missing="skip")) == 1
        with pytest.raises(StrapError, match=rf"only partly here, without {table(1)}.*\[hub\]"):
            dataset["episode_000001"].actions[:]
        with pytest.raises(StrapError, match=r"'a/b' is not a file or folder here; .*\[hub\]"):
            strap.open_dataset("a/b")

    def test_a_secret_is_in_no_message(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        for name, status in ((NAME, 200), (NAME, 403), (NAME, 500)):
            hub.status = status
            assert "hf_secret" not in told(["inspect", name], capsys)

    def test_a_dataset_that_is_gone_is_used_from_the_cache_with_a_note(
        self, hub: Hub, mugs: str
    ) -> None:
        before = strap.open_dataset(NAME)
        del hub.repositories[NAME]
        with pytest.warns(
            match=r"current commit of 'team/mugs' \(HTTP status 401\): commit .* is used"
        ):
            assert strap.open_dataset(NAME).name == before.name


class TestMissingFiles:
    @pytest.fixture
    def lacking(self, hub: Hub, written: Path, tmp_path: Path) -> str:
        """The commit of a dataset without one of its videos."""
        folder = shutil.copytree(written / "v3", tmp_path / "lacking")
        (folder / video("wrist", 1)).unlink()
        return hub.add(NAME, folder)

    def test_it_is_an_error_when_it_is_fetched(self, hub: Hub, lacking: str) -> None:
        dataset = strap.open_dataset(NAME)
        with pytest.raises(StrapError, match=f"no file '{video('wrist', 1)}'.*--missing skip"):
            dataset.fetch()
        assert len(dataset["episode_000001"].frames("front")) == LENGTHS[1]

    def test_it_is_skipped_by_what_the_hub_has(self, hub: Hub, lacking: str) -> None:
        whole = strap.open_dataset(NAME)
        with pytest.warns(match="skipped 1 of 4 episodes"):
            dataset = strap.open_dataset(NAME, missing="skip")
        assert list(dataset.ids) == ["episode_000000", "episode_000002", "episode_000003"]
        assert dataset.fingerprint() != whole.fingerprint()
        dataset.fetch()

    def test_offline_it_is_skipped_by_what_is_here(
        self, hub: Hub, lacking: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        strap.open_dataset(NAME).select(["episode_000002"]).fetch()
        unplug(monkeypatch, "HF_HUB_OFFLINE")
        with pytest.warns(match="skipped 3 of 4 episodes"):
            assert list(strap.open_dataset(NAME, missing="skip").ids) == ["episode_000002"]


class TestCommands:
    def test_inspect_fetches_no_video(
        self, hub: Hub, mugs: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["inspect", NAME]) == 0
        out = capsys.readouterr().out
        assert f"snapshots/{mugs}" in out
        assert "in the hub's cache, of 4 trajectories: the table of 0, the video of" in out
        assert all(file.startswith("meta/") for file in hub.files())

    def test_inspect_of_a_part(self, hub: Hub, mugs: str) -> None:
        dataset = strap.open_dataset(NAME)
        chosen = dataset.select(dataset.ids[:2])
        chosen.fetch(["front"])
        found = inspect(chosen)
        assert (found.episodes, found.sampled, found.frames) == (2, 2, 27)
        assert "the table of 2, the video of camera front of 2" in found.notes[0]
        assert "the video of camera wrist of 0" in found.notes[0]

    def test_a_contact_sheet_fetches_what_it_shows(self, hub: Hub, mugs: str) -> None:
        assert main(["inspect", NAME, "--episodes", "3", "--sheet", "sheet.png"]) == 0
        fetched = [f for f in hub.files() if not f.startswith("meta/")]
        assert fetched == [table(3), video("front", 3), video("wrist", 3)]

    def test_convert(self, hub: Hub, mugs: str) -> None:
        assert main(["convert", NAME, "copy.hdf5", "--episodes", "2"]) == 0
        copy = strap.open_dataset("copy.hdf5")
        assert copy[copy.ids[0]].length == LENGTHS[2]
        assert table(0) not in hub.files()

    def test_view(self, hub: Hub, mugs: str) -> None:
        assert open_subject([Path(NAME)]).name == NAME

    def test_training_data(self, hub: Hub, mugs: str) -> None:
        data = open_whole_datasets([NAME])
        data.fetch(["wrist"], lambda *_: None)
        assert len(data.clips) == len(LENGTHS)
        assert video("wrist", 3) in hub.files()
        assert video("front", 3) not in hub.files()

    def test_retrieve(self, hub: Hub, mugs: str, capsys: pytest.CaptureFixture[str]) -> None:
        words = [
            *("retrieve", "--target", NAME, "--target-episodes", "0", "--cameras", "front"),
            *("--prior", f"{NAME}@{mugs}", "--prior-episodes", "1:3", "--encoder", "pixels"),
            *("--segmentation", "window", "--window", "6", "--top-k", "2", "--out", "run"),
        ]
        assert main(words) == 0, capsys.readouterr().err
        assert table(3) not in hub.files()
        run = open_run("run")
        assert find_snapshot(Path(run.manifest["arguments"]["target"])) is not None
        assert run.manifest["arguments"]["prior"][0].endswith(mugs)
        assert len(run.matches) == 2
        matched = {match.segment.trajectory_id for match in run.matches}
        wrist = {f"episode_{n:06d}" for n in (1, 2) if video("wrist", n) in hub.files()}
        assert wrist == matched  # the augmented dataset has every camera, of matches alone
        strap.open_dataset(NAME).fetch()  # more of it changes nothing
        capsys.readouterr()
        assert main(words) == 0
        assert "up to date: nothing to do" in capsys.readouterr().out
        target, priors = open_run("run").datasets()
        assert (len(target), len(priors[0])) == (1, 2)

    def test_the_environment_says_where(self, hub: Hub, mugs: str, tmp_path: Path) -> None:
        environment: dict[str, Any] = dict(os.environ)
        environment.pop("HF_HUB_OFFLINE", None)
        environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "strap", "inspect", NAME, "--json"]

        def call(**more: str) -> subprocess.CompletedProcess[str]:
            settings = {**environment, **more}
            options: Any = {"capture_output": True, "text": True, "timeout": 200}
            return subprocess.run(command, env=settings, **options)

        done = call()
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        place = tmp_path / "home/hub/datasets--team--mugs/snapshots" / mugs
        assert json.loads(done.stdout)["path"] == str(place)
        asked = len(hub.requests)
        assert call(HF_HUB_OFFLINE="1").stdout == done.stdout
        assert len(hub.requests) == asked
