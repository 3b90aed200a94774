"""Running an experiment: failures, kills, two runners, keeping; with toys in place of commands."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests import forks
from tests.experiments.run_toys import run_toys
from tests.experiments.tables import (
    KNOWN,
    TEXT,
    cell_named,
    journal_of,
    read_small,
    toy_environment,
    toy_planner,
)

from strap.atomic import read_json
from strap.errors import StrapError
from strap.experiments.cellfolders import KEPT, read_cell
from strap.experiments.cells import list_cells
from strap.experiments.description import read_experiment
from strap.experiments.plan import Kind, Stage
from strap.experiments.runner import RunSettings, run_cells
from strap.experiments.scheduler import Outcome, Scheduler

ALONE = RunSettings(trainings=2, evaluations=2, share_gpu=False)
TRAIN_ONLY = replace(ALONE, stages=("cache", "retrieve", "pretrain", "train"))
STAGES = 34


class Bench:
    """The small experiment in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = TEXT) -> None:
        self.folder, self.data, self.work = folder, folder / "data", folder / "work"
        self.experiment = read_small(self.data, text)
        self.environment = toy_environment(folder, self.data)
        for name in ("JOURNAL", "MATCHES", "SECONDS"):
            monkeypatch.setenv(name, self.environment[name])
        self.lines: list[str] = []

    def run(self, settings: RunSettings = ALONE, work: Path | None = None) -> Outcome:
        planner = toy_planner(self.experiment, self.data, work or self.work)
        return run_cells(list_cells(self.experiment), planner, settings, self.lines.append)

    def start(self, seconds: float) -> BaseProcess:
        """Run it in a process of its own."""
        environment = {**self.environment, "SECONDS": str(seconds)}
        places = (self.data / "small.toml", self.data, self.work)
        return forks.start(run_toys, *places, environment=environment)

    def noted(self) -> set[str]:
        """The outputs of finished stages, as the journal calls them."""
        found = set()
        for kind, pattern in (("cache", "frames/*"), ("train", "pretrained/*"),
                              ("retrieve", "retrievals/*/*")):  # fmt: skip
            for note in self.work.glob(f"{pattern}.json"):
                out = note.with_suffix("")
                found.add(f"{kind}-{'-'.join(out.parts[-2:])}")
        for folder in self.work.glob("cells/*/*"):
            label = "-".join(folder.parts[-2:])
            if (folder / "manifest.json").exists():
                found |= {f"train-{label}", f"evaluate-{label}"}
            elif (folder / "train.json").exists():
                found.add(f"train-{label}")
        return found

    def check_complete(self) -> None:
        """Every cell is there and whole, and every piece of work was done once."""
        for cell in list_cells(self.experiment):
            result = read_cell(self.work, cell)
            assert result is not None
            assert len(result.successes) == 4
            assert (result.matches is not None) == (cell.method.retrieval is not None)
        done = journal_of(self.folder, "done")
        assert len(done) == len(set(done)), "some work was done twice"
        assert journal_of(self.folder, "collision") == []
        assert not any(self.work.glob("policies/*/*"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment that has been run."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        Bench(folder, monkeypatch).run()
    return folder


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment whose policies are all trained, and none evaluated."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        Bench(folder, monkeypatch).run(TRAIN_ONLY)
    return folder


@pytest.fixture
def trained(trained_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A copy of it, to be changed."""
    return Bench(shutil.copytree(trained_folder, tmp_path / "copy"), monkeypatch)


@pytest.fixture
def finished(finished_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A copy of it, to be changed."""
    return Bench(shutil.copytree(finished_folder, tmp_path / "copy"), monkeypatch)


def test_all_cells_are_run_and_nothing_again(bench: Bench) -> None:
    outcome = bench.run()
    assert len(outcome.finished) == STAGES
    assert not outcome.failed
    bench.check_complete()
    assert len(journal_of(bench.folder, "begin")) == STAGES
    assert bench.lines[0] == "14 cells, 0 of them finished"
    assert any("left: " in line and "about" in line for line in bench.lines)
    bench.run()
    assert len(journal_of(bench.folder, "begin")) == STAGES
    assert bench.lines[-1] == "14 cells, 14 of them finished"


def test_a_manifest_says_how_and_names_no_place(finished: Bench, finished_folder: Path) -> None:
    cell = cell_named(finished.experiment, "Mug/STRAP-k10-seed1")
    folder = finished.work / cell.folder
    manifest = read_json(folder / "manifest.json")
    assert manifest["identity"]["train_options"] == {"steps": 10, "decay": True}
    assert manifest["identity"]["top_k"] == 10
    assert set(manifest["data"]) == {"target", "prior-0", "prior-1"}
    assert set(manifest["seconds"]) == {"cache", "retrieve", "train", "evaluate"}
    assert manifest["commands"]["evaluate"][1] == "WORK/policies/Mug/STRAP-k10-seed1"
    assert manifest["commands"]["retrieve"][:3] == ["retrieve", "--target", "DATA/target"]
    assert "numpy" in manifest["versions"]
    assert str(finished_folder) not in (folder / "manifest.json").read_text()
    assert pq.read_table(folder / "matches.parquet").column("dataset").to_pylist() == 3 * [
        "prior-0"
    ]
    assert (folder / "train.log").read_text().startswith("$ ")


def test_a_failed_command_is_told_and_the_others_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING", "pretrained STRAP-k20-seed2")
    outcome = bench.run()
    assert len(outcome.failed) == 3  # the pre-training, a training of each task
    assert outcome.blocked == {
        *("train Mug/FT-seed1", "train Book/FT-seed1"),
        *("evaluate Mug/FT-seed1", "evaluate Book/FT-seed1"),
        *("evaluate Mug/STRAP-k20-seed2", "evaluate Book/STRAP-k20-seed2"),
    }
    told = next(line for line in bench.lines if "FAILED train Mug/STRAP-k20-seed2" in line)
    assert "exit code 3" in told
    assert told.endswith("    last line of the reason")
    assert len(list(bench.work.glob("cells/*/*/manifest.json"))) == 10
    monkeypatch.setenv("FAILING", "")
    assert not bench.run().failed
    bench.check_complete()


def test_stages_that_are_not_chosen_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    first = bench.run(replace(ALONE, stages=("retrieve",)))
    assert len(first.finished) == 4
    assert all(name.startswith("retrievals/") for name in first.finished)
    assert "30 commands are left for another run" in bench.lines
    second = bench.run(replace(ALONE, stages=("cache", "train")))
    assert not second.failed
    names = second.finished - first.finished
    assert {name.split("/")[0].split()[0] for name in names} == {"frames", "train"}
    assert not any("FT" in name for name in names)  # begins with a policy that is not there yet
    shutil.rmtree(bench.work / "frames")  # what is finished needs it no more
    third = bench.run(replace(ALONE, stages=("evaluate",)))
    assert sum(name.startswith("evaluate") for name in third.finished) == 12
    assert len(bench.run().finished) == 6  # FT's cells, the policy they begin with, the frames


def test_a_finished_stage_waits_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retrievals of one task are there; those that would have gone first are not chosen."""
    bench = Bench(tmp_path, monkeypatch)
    planner = toy_planner(bench.experiment, bench.data, bench.work)
    book = list_cells(bench.experiment, tasks=["Book"])
    assert len(run_cells(book, planner, replace(ALONE, stages=("retrieve",))).finished) == 2
    done = bench.run(replace(ALONE, stages=("cache", "train")))
    assert sum(name.startswith("train Book/STRAP") for name in done.finished) == 4


@pytest.mark.slow
def test_killed_at_random_moments_nothing_is_repeated_or_lost(bench: Bench) -> None:
    chance = random.Random(21)
    kills = 0
    while kills < 20:
        begun, finished = set(_begins(bench)), bench.noted()
        runner = bench.start(seconds=0.1)
        # While it imports, nothing can go wrong: wait for the first command.
        while runner.is_alive() and set(_begins(bench)) == begun:
            time.sleep(0.005)
        runner.join(chance.random() * 0.25)
        if runner.is_alive():
            runner.kill()
            kills += 1
        runner.join()
        repeated = {name.split(" ")[1] for name in set(_begins(bench)) - begun} & finished
        assert not repeated, "stages that were finished began again"
        if runner.exitcode == 0:
            break
    assert kills == 20, "the experiment was over before it was killed often enough"
    finished = bench.noted()
    assert 0 < len(finished) < STAGES
    last = bench.start(seconds=0.01)
    last.join()
    assert last.exitcode == 0
    bench.check_complete()


def _begins(bench: Bench) -> list[str]:
    return [p.name for p in (bench.folder / "journal").iterdir() if p.name.startswith("begin")]


def test_two_runners_share_the_work(bench: Bench) -> None:
    runners = [bench.start(seconds=0.1) for _ in range(2)]
    for runner in runners:
        runner.join()
    assert [runner.exitcode for runner in runners] == [0, 0]
    bench.check_complete()
    assert len(journal_of(bench.folder, "begin")) == STAGES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_commands_end_with_their_runner(bench: Bench, number: signal.Signals) -> None:
    runner = bench.start(seconds=1000)
    while not _begins(bench):
        time.sleep(0.01)
    children = {int(name.split(" ")[2].split("-")[0]) for name in _begins(bench)}
    assert runner.pid
    os.kill(runner.pid, number)
    runner.join(60)
    assert runner.exitcode not in (0, None)
    deadline = time.monotonic() + 20
    while any(_is_alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_nothing_is_begun_after_the_time(bench: Bench) -> None:
    outcome = bench.run(RunSettings(seconds=0, share_gpu=False))
    assert len(outcome.finished) + len(outcome.postponed) == STAGES
    assert outcome.postponed
    assert not outcome.failed
    begun = [label.split("-")[0] for label in journal_of(bench.folder, "begin")]
    assert begun == ["cache", "retrieve"]
    bench.run()
    bench.check_complete()


def test_what_is_trained_is_evaluated_after_the_time(trained: Bench) -> None:
    outcome = trained.run(replace(ALONE, evaluations=1, seconds=0))
    assert not outcome.postponed
    trained.check_complete()


def test_evaluations_last(bench: Bench) -> None:
    bench.run(replace(ALONE, evaluate_last=True))
    bench.check_complete()
    times = {path.name: path.stat().st_mtime_ns for path in (bench.folder / "journal").iterdir()}
    begun = [time for name, time in times.items() if name.startswith("begin evaluate-")]
    trained = [time for name, time in times.items() if name.startswith("done train-")]
    assert len(begun) == 14
    assert min(begun) >= max(trained)


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("after", [(), ("first", "second")])
def test_at_the_deadline_a_policy_in_training_is_still_evaluated(
    tmp_path: Path, code: int, after: tuple[str, ...]
) -> None:
    def stage(name: str, kind: Kind, command: str, needs: tuple[str, ...] = ()) -> Stage:
        place = tmp_path / name
        place.mkdir()
        return Stage(name, kind, ("sh", "-c", command), place, place, needs)

    stages = [
        stage("first", "train", f"sleep 0.3; exit {code}"),
        replace(stage("of the first", "evaluate", "true", ("first",)), after=after),
        stage("second", "train", "true"),
        stage("of the second", "evaluate", "true", ("second",)),
    ]
    ended: list[str] = []
    outcome = Scheduler(
        stages,
        slots={},
        on_success=lambda stage, _: ended.append(stage.name),
        tell=lambda _: None,
        seconds=0,
        kind_after_deadline="evaluate",
        pause=0.01,
    ).run()
    assert outcome.postponed == {"second", "of the second"}
    assert ended == ([] if code else ["first", "of the first"])
    assert outcome.blocked == ({"of the first"} if code else set())


def test_at_the_deadline_a_training_that_finished_unnoticed_is_still_evaluated(
    bench: Bench,
) -> None:
    """It waits behind another one for the only slot."""
    bench.run(TRAIN_ONLY)
    first = list_cells(bench.experiment)[0]
    (bench.work / first.folder / "train.json").unlink()
    outcome = bench.run(RunSettings(evaluations=1, share_gpu=False, seconds=0))
    evaluated = [name for name in outcome.finished if name.startswith("evaluate")]
    assert len(evaluated) == 14


def test_at_the_deadline_what_is_trained_is_evaluated_though_its_frames_are_gone(
    trained: Bench,
) -> None:
    for frames in (trained.work / "frames").iterdir():
        shutil.rmtree(frames) if frames.is_dir() else frames.unlink()
    outcome = trained.run(RunSettings(evaluations=1, share_gpu=False, seconds=0))
    evaluated = [name for name in outcome.finished if name.startswith("evaluate")]
    assert len(evaluated) == 14


@pytest.mark.parametrize("change", ["options", "data"])
def test_what_was_trained_otherwise_is_not_evaluated(trained: Bench, change: str) -> None:
    before = trained.experiment
    if change == "options":
        trained.experiment = read_small(trained.data, TEXT.replace("steps = 10", "steps = 12"))
    else:
        (trained.data / "target/more").write_text("another demonstration")
    with pytest.raises(StrapError, match="trained with other options or on other data"):
        trained.run()
    assert not any(trained.work.glob("cells/*/*/episodes.jsonl"))
    if change == "options":
        trained.experiment = before
    else:
        (trained.data / "target/more").unlink()
    trained.run()
    trained.check_complete()


def test_what_trained_policies_needed_is_not_made_again(trained: Bench) -> None:
    for name in ("frames", "retrievals", "pretrained"):
        shutil.rmtree(trained.work / name)
    outcome = trained.run()
    assert len(outcome.finished) == 28
    trained.check_complete()
    assert not (trained.work / "frames").exists()


def test_matches_of_a_training_from_before_are_copied_from_its_retrieval(trained: Bench) -> None:
    for file in trained.work.glob("cells/*/*/matches.parquet"):
        file.unlink()
    trained.run()
    trained.check_complete()


def test_a_policy_whose_matches_are_gone_fails_alone(trained: Bench) -> None:
    for file in trained.work.glob("cells/*/*/matches.parquet"):
        file.unlink()
    gone = next(trained.work.glob("retrievals/Mug/strap-*/matches.parquet"))
    gone.unlink()
    outcome = trained.run()
    assert outcome.failed
    assert all(
        f"was trained on '{gone}', which is gone: restore" in why for why in outcome.failed.values()
    )
    assert len(outcome.finished) == 28 - len(outcome.failed)


def test_moved_data_are_the_same(trained: Bench, tmp_path: Path) -> None:
    trained.data = trained.data.rename(tmp_path / "moved")
    outcome = trained.run()
    assert len(outcome.finished) == 28
    trained.check_complete()


def test_other_policies_do_not_keep_retrievals_from_being_made(trained: Bench) -> None:
    trained.experiment = read_small(trained.data, TEXT.replace("steps = 10", "steps = 12"))
    assert not trained.run(replace(ALONE, stages=("retrieve",))).failed
    with pytest.raises(StrapError, match=r"'.*/policies/.*', '.*/policies/.*': trained with other"):
        trained.run()


def test_weights_stay_where_they_are_wanted(bench: Bench) -> None:
    bench.run(RunSettings(checkpoints=True, share_gpu=False))
    assert len(list(bench.work.glob("policies/*/*/result.txt"))) == 14
    bench.run()  # puts them away
    assert not any(bench.work.glob("policies/*/*"))


def test_kept_cells_go_on_elsewhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = bench.folder / "kept"
    monkeypatch.setenv("FAILING", "Book")
    bench.run(RunSettings(keep=kept, share_gpu=False))
    files = {path.name for path in kept.rglob("*") if path.is_file()}
    assert files == set(KEPT)
    assert len(list(kept.glob("cells/*/*/manifest.json"))) == 7
    assert str(bench.folder).encode() not in b"".join(
        path.read_bytes() for path in kept.rglob("*") if path.is_file()
    )
    monkeypatch.setenv("FAILING", "")
    begun = len(journal_of(bench.folder, "begin"))
    elsewhere = bench.folder / "elsewhere"
    bench.run(RunSettings(kept=kept, keep=kept, share_gpu=False), elsewhere)
    new = journal_of(bench.folder, "begin")[begun:]
    assert "7 finished cells taken from" in "\n".join(bench.lines)
    assert len(new) == 1 + 1 + 2 + 7 + 7  # cache, pre-training, Book's retrievals and cells
    assert len(list(kept.glob("cells/*/*/manifest.json"))) == 14


def test_cells_made_otherwise_are_refused(finished: Bench) -> None:
    finished.run()
    assert len(journal_of(finished.folder, "begin")) == STAGES  # as they are, they are taken
    changed = finished.data / "other.toml"
    changed.write_text(TEXT.replace("steps = 10", "steps = 11"))
    finished.experiment = read_experiment(changed, KNOWN)
    with pytest.raises(StrapError, match=r"train_options\.steps is 10 here and 11 there"):
        finished.run()
    finished.experiment = read_small(finished.data)
    (finished.data / "prior-1" / "data.bin").write_bytes(b"changed")
    with pytest.raises(StrapError, match="made from other data"):
        finished.run()


def test_data_that_was_copied_again_is_decoded_and_searched_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING", "train")
    bench.run()
    begun = journal_of(bench.folder, "begin")
    os.utime(bench.data / "prior-0" / "data.bin", ns=(1, 1))
    bench.run()
    new = [label.split("-")[0] for label in journal_of(bench.folder, "begin")]
    for label in begun:
        new.remove(label.split("-")[0])
    trainings = [label for label in begun if label.startswith("train")]
    assert len(trainings) == 13
    assert sorted(new) == ["cache"] + 4 * ["retrieve"] + 13 * ["train"]


def test_an_evaluation_that_lacks_episodes_is_no_result(finished: Bench) -> None:
    cell = cell_named(finished.experiment, "Mug/BC-seed1")
    file = finished.work / cell.folder / "episodes.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(StrapError, match=r"lacks 1 of 4 episodes \(initial state 3"):
        finished.run()
