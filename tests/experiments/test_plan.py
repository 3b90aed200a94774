"""The plan: which commands, in which order, sharing what."""

from __future__ import annotations

from pathlib import Path

import pytest
import tyro
from tests.experiments.tables import TEXT, cell_named, read_small, toy_planner, write_cell

from strap.cli import retrieve, train
from strap.cli.experiment import EXPERIMENT_COMMANDS, list_options
from strap.errors import StrapError
from strap.experiments.cells import list_cells
from strap.experiments.datafolder import fingerprint, open_data
from strap.experiments.description import read_experiment
from strap.experiments.plan import Planner, Stage
from strap.experiments.runner import format_plan
from strap.policies import policy_preset

RUNS = Path(__file__).parents[2] / "runs"


def plan(folder: Path, text: str = TEXT) -> dict[str, Stage]:
    own = read_small(folder, text)
    stages = toy_planner(own, folder, folder / "work").plan(list_cells(own))
    return {stage.name: stage for stage in stages}


def words(stage: Stage) -> str:
    return " ".join(stage.command[4:])


def test_stages_are_shared(tmp_path: Path) -> None:
    stages = plan(tmp_path)
    kinds = [stage.kind for stage in stages.values()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "cache": 1,
        "pretrain": 1,  # for both tasks
        "retrieve": 4,  # two tasks, two K; for both seeds
        "train": 14,
        "evaluate": 14,
    }
    for stage in stages.values():
        assert all(need in stages for need in (*stage.needs, *stage.after))


def test_commands_say_what_the_file_says(tmp_path: Path) -> None:
    stages = plan(tmp_path)
    data, work = tmp_path, tmp_path / "work"
    (frames,) = (name for name in stages if name.startswith("frames/"))
    target = f"{data}/target --tasks put the mug on the plate --episodes 0:5"
    rest = f"--frames {work}/{frames} --seed 1 --out {work}/policies/Mug"
    assert words(stages[frames]).startswith(
        f"cache {data}/target {data}/prior-0 {data}/prior-1 --out {work}/frames/"
    )
    bc = stages["train Mug/BC-seed1"]
    assert words(bc) == f"train {target} --recipe bc {rest}/BC-seed1 --steps 10 --decay"
    ft = stages["train Mug/FT-seed1"]
    (pretrained,) = (name for name in stages if name.startswith("pretrained/"))
    assert f"--recipe bc --init {work}/{pretrained} --frames" in words(ft)
    assert pretrained in ft.needs
    assert words(stages[pretrained]).startswith(
        f"train {data}/prior-0 --prior {data}/prior-1 --recipe mt --frames"
    )
    strap = stages["train Mug/STRAP-k20-seed1"]
    retrieval = strap.needs[1]
    assert words(strap).startswith(f"train {work}/{retrieval} --recipe strap --frames")
    assert words(stages[retrieval]) == (
        f"retrieve --target {data}/target --target-tasks put the mug on the plate "
        f"--target-episodes 0:5 --prior {data}/prior-0 {data}/prior-1 --method strap "
        f"--encoder pixels --top-k 20 --augmented none --report none --overwrite "
        f"--stores {work}/stores --out {work}/{retrieval}"
    )
    assert words(stages["evaluate Mug/BC-seed1"]) == (
        f"evaluate {work}/policies/Mug/BC-seed1 --suite libero_10 --task put the mug on the plate "
        f"--episodes 4 --seed 1 --out {work}/cells/Mug/BC-seed1 --workers 2 --no-videos"
    )


def test_retrieved_matches_may_be_trained_on_after_the_prior(tmp_path: Path) -> None:
    text = TEXT.replace('retrieval = "strap"', 'retrieval = "strap"\npretrained = true')
    text = text.replace("top_k = [10, 20]", "top_k = 20\ntrain_options = { alpha = 0.5 }")
    stages = plan(tmp_path, text)
    (pretrained,) = (name for name in stages if name.startswith("pretrained/") and "seed1" in name)
    strap = stages["train Mug/STRAP-k20-seed1"]
    assert f"--recipe strap --init {tmp_path}/work/{pretrained} --frames" in words(strap)
    assert pretrained in strap.needs
    assert "--alpha 0.5" in words(strap)
    assert "--alpha" not in words(stages[pretrained])  # so that FT shares it
    assert pretrained in stages["train Mug/FT-seed1"].needs


def test_a_share_of_the_target_for_all_is_for_those_that_train_on_more(tmp_path: Path) -> None:
    stages = plan(tmp_path, TEXT.replace("decay = true", "decay = true\nalpha = 0.5"))
    weighed = {name for name, stage in stages.items() if "--alpha 0.5" in words(stage)}
    assert weighed == {name for name in stages if name.startswith("train ") and "STRAP" in name}


def test_later_states_and_multi_task_training(tmp_path: Path) -> None:
    text = TEXT.replace('"0:4"', '"20:40"').replace('train = "ft"', 'train = "mt"')
    stages = plan(tmp_path, text)
    assert "--episodes 20 --first 20" in words(stages["evaluate Mug/BC-seed1"])
    prior = f"--prior {tmp_path}/prior-0 {tmp_path}/prior-1 --recipe mt"
    assert prior in words(stages["train Mug/FT-seed1"])


def test_how_much_is_kept_may_be_said_otherwise(tmp_path: Path) -> None:
    text = TEXT.replace("top_k = [10, 20]", "retrieve_options = { fraction = 0.1 }")
    stages = plan(tmp_path, text)
    retrieval = stages["train Mug/STRAP-seed1"].needs[1]
    assert "--top-k" not in words(stages[retrieval])
    assert words(stages[retrieval]).endswith("--fraction 0.1")
    stages = plan(tmp_path, TEXT.replace("top_k = [10, 20]", 'top_k = "auto"'))
    retrieval = stages["train Mug/STRAP-seed1"].needs[1]
    assert words(stages[retrieval]).endswith("--top-k auto")
    both = TEXT.replace("top_k = [10, 20]", "top_k = 5\nretrieve_options = { threshold = 0.9 }")
    with pytest.raises(StrapError, match="STRAP has top_k and threshold: remove one"):
        plan(tmp_path, both)


def test_retrievals_wait_for_the_one_that_embeds(tmp_path: Path) -> None:
    text = TEXT + '[[methods]]\nname = "BR"\ntrain = "strap"\nretrieval = "br"\ntop_k = 5\n'
    text = text.replace("[paper.BC]\nMug = 50\n", "")
    retrievals = [stage for stage in plan(tmp_path, text).values() if stage.kind == "retrieve"]
    first = retrievals[0].name
    features = next(stage.name for stage in retrievals if "--method br" in words(stage))
    for stage in retrievals[1:]:
        assert first in stage.after
        later = "--method br" in words(stage) and stage.name != features
        assert (features in stage.after) == later


def test_what_decides_a_result_decides_the_folder(tmp_path: Path) -> None:
    before = plan(tmp_path)
    other = plan(tmp_path, TEXT.replace("top_k = [10, 20]", "top_k = [10, 30]"))
    retrievals = [{n for n in own if n.startswith("retrievals")} for own in (before, other)]
    assert len(retrievals[0] & retrievals[1]) == 2  # those of K = 10
    (tmp_path / "prior-0" / "data.bin").write_bytes(b"more than before")
    assert not {n for n in plan(tmp_path) if n.startswith("retrievals")} & retrievals[0]


def test_the_fingerprint_of_data_outlives_a_copy(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "videos").mkdir(parents=True)
        (tmp_path / name / "videos" / "0.mp4").write_bytes(b"xyz")
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")
    (tmp_path / "b" / "videos" / "1.mp4").write_bytes(b"xyz")
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


def test_missing_data_is_named(tmp_path: Path) -> None:
    own = read_small(tmp_path / "files")
    (tmp_path / "other" / "things").mkdir(parents=True)
    with pytest.raises(StrapError, match=r"no dataset 'prior\*' \(it holds things\).*--data"):
        open_data(own, tmp_path / "other")
    outside = read_small(tmp_path / "files", TEXT.replace('"target"', '"../target"'))
    with pytest.raises(StrapError, match="not below the data folder"):
        open_data(outside, tmp_path / "files")
    twice = read_small(tmp_path / "files", TEXT.replace('["prior*"]', '["prior*", "prior-0"]'))
    with pytest.raises(StrapError, match="name a dataset twice"):
        open_data(twice, tmp_path / "files")


def test_the_plan_in_words(tmp_path: Path) -> None:
    own = read_small(tmp_path)
    told = format_plan(list_cells(own), toy_planner(own, tmp_path, tmp_path / "work"))
    assert told.startswith("14 cells, 0 of them finished\n  Mug/BC-seed1\n")
    assert "34 commands: 1 cache, 14 train, 14 evaluate, 1 pretrain, 4 retrieve" in told
    assert "strap train DATA/target --tasks 'put the mug on the plate' --episodes 0:5" in told
    assert "--out WORK/policies/Mug/BC-seed1" in told


def test_cells_that_a_run_would_refuse_are_not_finished(tmp_path: Path) -> None:
    own, work, kept = read_small(tmp_path), tmp_path / "work", tmp_path / "kept"
    datasets = {"data": {"target": "a", "prior-0": "b"}}
    write_cell(work, cell_named(own, "Mug/BC-seed1"), [True] * 4, **datasets)
    write_cell(work, cell_named(own, "Mug/BC-seed2"), [True] * 3, **datasets)
    older = read_small(tmp_path, TEXT.replace("steps = 10", "steps = 5"))
    write_cell(kept, cell_named(older, "Book/BC-seed1"), [True] * 4, **datasets)
    own = read_small(tmp_path)
    told = format_plan(list_cells(own), toy_planner(own, tmp_path, work), kept)
    assert told.startswith("14 cells, 1 of them finished\n  Mug/BC-seed1  finished\n")
    difference = "train_options.steps is 5 here and 10 there"
    assert f"\n  Book/BC-seed1  differs: {difference}\n" in told
    assert "\n  Mug/BC-seed2  unusable: '" in told
    assert "lacks 1 of 4 episodes" in told
    assert "a run would refuse the 2 that differ or are unusable" in told
    assert "11 train, 11 evaluate" in told


@pytest.mark.parametrize("file", sorted(RUNS.glob("*.toml")), ids=lambda path: path.stem)
def test_policies_of_our_experiments_find_all_that_they_see_around_matches(
    file: Path, tmp_path: Path
) -> None:
    """The commands are parsed as `strap` does; a retrieval keeps what its trainings look at."""
    known = {name: list_options(name) for name in EXPERIMENT_COMMANDS}
    experiment = read_experiment(file, known)
    cells = list_cells(experiment, tasks=list(experiment.tasks)[:1])
    data = open_data(experiment, tmp_path, must_exist=False)
    stages = {s.name: s for s in Planner(data, tmp_path / "work", known).plan(cells)}

    def parse(command: type, stage: Stage) -> object:
        arguments = stage.command[4:]
        return tyro.cli(command, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))

    kept = {
        name: parse(retrieve.Command, stage)
        for name, stage in stages.items()
        if stage.kind == "retrieve"
    }
    assert kept
    for stage in stages.values():
        if stage.kind != "train":
            continue
        training = parse(train.Command, stage)
        policy = policy_preset(
            training.preset, kind=training.kind, vision=training.vision or "resnet"
        )
        history, chunk = training.history or policy.history, training.chunk or policy.chunk
        for need in set(stage.needs) & set(kept):
            assert history - 1 <= kept[need].history
            assert chunk + policy.first_action - 1 <= kept[need].chunk
