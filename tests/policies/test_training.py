"""Caches, mixtures and the trainer, on generated data."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import strap
from strap import atomic
from strap.cli import main
from strap.errors import StrapError
from strap.locks import LOCK, exclusive_lock
from strap.policies import (
    Batch,
    Observation,
    PolicySettings,
    frozen_vision,
    load_checkpoint,
    load_policy,
)
from strap.policies.checkpoints import read_tensors
from strap.synthetic import Planted
from strap.training import FrameCache, TrainingSettings, cache_builder, open_cache, train
from strap.training.batches import Loader, Sampler
from strap.training.cache_builder import CacheOptions, build_cache
from strap.training.data import open_training_data
from strap.training.logs import read_log
from strap.training.updates import should_compile
from strap.training.windows import choose_held_out, prior_windows, training_windows

from .conftest import OPTIONS

SMALL = PolicySettings(history=2, chunk=2, layers=1, width=32, heads=2, keypoints=4, features=8)
QUICK = TrainingSettings(recipe="bc", steps=4, batch=2, warmup=2, learning_rate=1e-3, log_every=2)


def test_the_cache_holds_what_the_datasets_hold(cache: FrameCache, planted: Planted) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    for clip in cache.clips:
        dataset = target if clip.role == "target" else prior
        own = dataset[clip.id]
        rows = slice(clip.row, clip.row + clip.length)
        part = slice(clip.start, clip.stop)
        upright = own.frames("agentview_rgb", clip.start, clip.stop)
        assert np.array_equal(cache.frames("agentview_rgb")[rows], upright)
        np.testing.assert_allclose(cache.actions[rows], own.actions[part], atol=1e-6)
        states = [own.proprioception[key][part] for key in cache.interface.proprioception]
        np.testing.assert_allclose(cache.states[rows], np.concatenate(states, 1), atol=1e-6)
        assert cache.instructions[clip.instruction] == own.instruction
    assert len(cache.retrieved) == 6


def test_a_killed_cache_goes_on_and_a_finished_one_is_kept(
    run: Path, tmp_path: Path, cache: FrameCache
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    source = open_training_data(run)
    with pytest.raises(KeyboardInterrupt):
        build_cache(source, tmp_path, OPTIONS, progress=interrupt)
    with pytest.raises(StrapError, match="is not a finished frame cache"):
        open_cache(tmp_path)
    seen: list[int] = []
    made = build_cache(source, tmp_path, OPTIONS, progress=lambda w, done, t: seen.append(done))
    assert seen[0] == 4
    assert np.array_equal(made.frames("agentview_rgb"), cache.frames("agentview_rgb"))
    seen.clear()
    build_cache(source, tmp_path, OPTIONS, progress=lambda w, done, t: seen.append(done))
    assert not seen


def test_a_cache_begun_with_other_options_is_not_gone_on_with(
    run: Path, tmp_path: Path, cache: FrameCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with one set of options, then with another before anything was noted of it."""

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    def write_json(path: Path, value: object) -> None:
        if path.name == "building.json":
            raise KeyboardInterrupt
        atomic.write_json(path, value)

    source, smaller = open_training_data(run), replace(OPTIONS, image_size=16)
    with pytest.raises(KeyboardInterrupt):
        build_cache(source, tmp_path, OPTIONS, progress=interrupt)
    monkeypatch.setattr(cache_builder, "write_json", write_json)
    with pytest.raises(KeyboardInterrupt):
        build_cache(source, tmp_path, smaller)
    monkeypatch.undo()
    made = build_cache(source, tmp_path, OPTIONS)
    assert np.array_equal(made.frames("agentview_rgb"), cache.frames("agentview_rgb"))


def test_a_cache_that_two_need_is_built_once(run: Path, tmp_path: Path) -> None:
    source, written = open_training_data(run), list[int]()

    def build(_: int) -> int:
        cache = build_cache(
            source, tmp_path, OPTIONS, progress=lambda w, done, t: written.append(done)
        )
        return cache.rows

    with ThreadPoolExecutor(2) as threads:
        assert len(set(threads.map(build, range(2)))) == 1
    assert written == list(range(1, len(source.clips) + 1))


def test_the_augmented_dataset_gives_the_same_windows(
    run: Path, cache: FrameCache, tmp_path: Path
) -> None:
    """What `strap retrieve` wrote, and what the run points at, are the same training set."""
    other = build_cache(open_training_data(run / "augmented.hdf5"), tmp_path, OPTIONS)
    ours, theirs = (training_windows(c, "strap") for c in (cache, other))
    assert len(ours) == len(theirs)
    assert np.array_equal(cache.actions[ours.anchor], other.actions[theirs.anchor])
    pictures = [c.frames("agentview_rgb")[w.anchor] for c, w in ((cache, ours), (other, theirs))]
    assert np.array_equal(*pictures)


def test_options_that_a_cache_has_settled_are_refused(
    cache: FrameCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(cache.path), "--out", str(tmp_path / "p"), "--cameras", "front"]
    assert main([*words, "--image-size", "64"]) == 2
    told = capsys.readouterr().err
    assert "is already built, so these have no effect: --cameras, --image-size;" in told
    assert not (tmp_path / "p").exists()


def test_windows_of_each_method(cache: FrameCache, run: Path, tmp_path: Path) -> None:
    target = sum(s.length for s in cache.clips if s.role == "target")
    found = sum(r.stop - r.start for r in cache.retrieved)
    assert len(training_windows(cache, "bc")) == target
    both = training_windows(cache, "strap")
    assert len(both) == target + found
    assert both.probabilities().sum() == pytest.approx(1)
    assert np.ptp(both.probabilities()) == pytest.approx(0)  # uniform over frames
    half = both.probabilities(0.5)
    assert half[both.is_target].sum() == pytest.approx(0.5)
    weights = [0.0] * len(cache.retrieved)
    weights[0] = 3.0
    own = training_windows(cache, "strap", match_weights=weights)
    first = cache.retrieved[0]
    assert own.weight[~own.is_target].sum() == 3.0 * (first.stop - first.start)
    with pytest.raises(StrapError, match="2 match weights for 6 matches"):
        training_windows(cache, "strap", match_weights=[1.0, 2.0])
    whole = build_cache(open_training_data(run, whole_prior=True), tmp_path, OPTIONS)
    assert len(training_windows(whole, "mt")) == whole.rows
    assert len(prior_windows(whole)) == whole.rows - target


def test_what_was_found_for_a_held_out_demonstration_is_left_out(cache: FrameCache) -> None:
    held = choose_held_out(cache, 1, 0)
    kept = training_windows(cache, "strap", held_out=held)
    left = [r for r in cache.retrieved if r.query not in held]
    assert 0 < len(left) < len(cache.retrieved)
    assert (~kept.is_target).sum() == sum(r.stop - r.start for r in left)
    with pytest.raises(StrapError, match="at least one must be left"):
        choose_held_out(cache, 2, 0)


def test_a_batch_by_hand(cache: FrameCache) -> None:
    windows = training_windows(cache, "bc")
    loader = Loader(cache, windows, PolicySettings(), torch.device("cpu"))
    last = cache.clips[0].length - 1
    draw = loader.centred(torch.tensor([0, 10, last]))
    batch = loader.gather(draw)
    begin = (32 - cache.interface.crop) // 2
    middle = slice(begin, begin + cache.interface.crop)
    frames = torch.from_numpy(np.array(cache.frames("agentview_rgb")))[:, middle, middle]
    seen = batch.images["agentview_rgb"]
    assert torch.equal(seen[0], frames[[0] * 5])  # the first frame stands for those before it
    assert torch.equal(seen[1], frames[6:11])
    actions = torch.from_numpy(np.array(cache.actions))
    assert torch.equal(batch.actions[1], actions[10:15])  # action t beside the frame seen before it
    assert batch.valid.tolist() == [[True] * 5, [True] * 5, [True] + [False] * 4]
    assert torch.equal(batch.actions[2, 0], actions[last])
    diffusion = PolicySettings(kind="diffusion", history=2, chunk=4, first_action=-1)
    loader = Loader(cache, windows, diffusion, torch.device("cpu"))
    batch = loader.gather(loader.centred(torch.tensor([0, 10])))
    assert torch.equal(batch.actions[1], actions[9:13])
    assert batch.valid[0].tolist() == [False, True, True, True]


def test_draws_follow_from_the_seed_and_the_step_alone() -> None:
    weights = np.array([0.0, 1.0, 3.0])
    one, two = (Sampler([(0, weights)], 8, 13, 2, 5) for _ in range(2))
    for step in (200, 3, 77):
        assert torch.equal(one.draw(step), two.draw(step))
    assert not torch.equal(one.draw(3), one.draw(4))
    drawn = torch.cat([one.draw(step) for step in range(300)])
    assert set(drawn[:, 0].tolist()) == {1, 2}
    assert 0.7 < (drawn[:, 0] == 2).float().mean() < 0.8
    assert (drawn[:, 1:].amin(), drawn[:, 1:].amax()) == (0, 12)
    phases = Sampler([(0, np.array([1.0, 0.0])), (10, np.array([0.0, 1.0]))], 4, 1, 1, 0)
    assert phases.draw(9)[:, 0].tolist() == [0] * 4
    assert phases.draw(10)[:, 0].tolist() == [1] * 4


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_tensors(folder / "resume.safetensors")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a training; all in one file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (folder / "tensorboard").iterdir()
    events = EventAccumulator(str(file)).Reload()
    names = set(events.Tags()["scalars"]) - {"steps_per_second"}
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


@pytest.mark.parametrize("kind", ["transformer", "diffusion"])
def test_two_steps_and_a_resume_are_four_steps(
    cache: FrameCache, frozen: FrameCache, tmp_path: Path, kind: str
) -> None:
    settings = replace(SMALL, kind=kind)
    if kind == "diffusion":
        cache = frozen
        settings = replace(settings, vision="frozen")
        more = {"chunk": 4, "channels": (8, 16), "groups": 4, "norm": "group", "normalize": "all"}
        settings = replace(settings, history=2, **more)
    own = {"ema": True, "holdout": 1, "eval_every": 2} if kind == "diffusion" else {}
    quick = replace(QUICK, recipe="strap", **own)
    train(cache, tmp_path / "four", policy=settings, training=quick, quiet=True)
    two = replace(quick, steps=2)
    train(cache, tmp_path / "two", policy=settings, training=two, quiet=True)
    assert read_log(tmp_path / "two")[-1]["step"] == 2
    train(cache, tmp_path / "two", policy=settings, training=quick, quiet=True)
    straight, resumed = weights_of(tmp_path / "four"), weights_of(tmp_path / "two")
    assert straight.keys() == resumed.keys()
    for name in straight:
        assert torch.equal(straight[name], resumed[name]), name
    logs = [
        [
            {k: v for k, v in row.items() if k not in ("steps_per_second", "time")}
            for row in read_log(path)
        ]
        for path in (tmp_path / "four", tmp_path / "two")
    ]
    assert logs[0] == logs[1]
    assert scalars(tmp_path / "two") == scalars(tmp_path / "four")
    train(cache, tmp_path / "two", policy=settings, training=quick, quiet=True)  # it has finished
    assert scalars(tmp_path / "two") == scalars(tmp_path / "four")
    with pytest.raises(StrapError, match="holds a training with other settings"):
        train(cache, tmp_path / "two", policy=settings, training=replace(quick, batch=3))


def test_overfitting_one_demonstration_reaches_near_zero_error(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From frozen vision and proprioception the actions come back, and `act` gives them."""
    monkeypatch.setattr(frozen_vision, "SAMPLE", 512)  # what is learned depends on it
    source = open_training_data(planted.target)
    source = replace(source, clips=source.clips[:1])
    cache = build_cache(source, tmp_path / "c", replace(OPTIONS, vision="frozen"))
    where = np.array(cache.states[:, :3])
    actions = 0.8 * np.sin(8 * np.concatenate([where, where[:, ::-1]], axis=1))
    gripper = np.where(np.arange(len(where)) % 40 < 20, -1.0, 1.0)[:, None]
    actions = np.concatenate([actions, gripper], axis=1)
    np.save(cache.path / "actions.npy", actions.astype(np.float32))
    cache = open_cache(cache.path)
    # One mode: a mixture hedges between gripper signs long after it knows the rest.
    settings = replace(SMALL, vision="frozen", dropout=0.0, attention_dropout=0.0, width=64)
    settings = replace(settings, history=5, chunk=5, modes=1)
    steps = TrainingSettings(recipe="bc", steps=450, batch=32, learning_rate=2e-3, warmup=50)
    done = train(cache, tmp_path / "k", policy=settings, training=steps, quiet=True)
    assert done.loss < -10
    policy = load_policy(tmp_path / "k", device="cpu")
    policy.reset(seed=0)
    trajectory = strap.open_dataset(planted.target)["demo_0"]
    predicted = []
    for t in range(trajectory.length):
        seen = Observation(
            {"agentview_rgb": trajectory.frames("agentview_rgb", t, t + 1)[0]},
            {key: trajectory.proprioception[key][t] for key in cache.interface.proprioception},
            trajectory.instruction,
        )
        predicted.append(policy.act(seen))
    error = np.abs(np.stack(predicted) - actions)
    assert np.median(error) < 0.03
    assert (np.sign(np.stack(predicted)[:, 6]) == gripper[:, 0]).mean() > 0.9


@pytest.fixture(scope="module")
def trained(cache: FrameCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet policy, barely trained."""
    out = tmp_path_factory.mktemp("trained")
    train(cache, out, policy=SMALL, training=replace(QUICK, steps=2), quiet=True)
    return out


def test_the_policy_that_acts_is_the_one_that_was_trained(
    cache: FrameCache, trained: Path, planted: Planted
) -> None:
    """Frame by frame, with one-frame features kept, gives what the whole window gives."""
    checkpoint = load_checkpoint(trained)
    module = checkpoint.policy.eval()
    windows = training_windows(cache, "bc")
    loader = Loader(cache, windows, SMALL, torch.device("cpu"))
    trajectory = strap.open_dataset(planted.target)["demo_0"]
    policy = load_policy(trained, device="cpu")
    policy.reset(seed=7)
    generator = torch.Generator().manual_seed(7)
    for t in range(8):
        seen = Observation(
            {"agentview_rgb": trajectory.frames("agentview_rgb", t, t + 1)[0]},
            {key: trajectory.proprioception[key][t] for key in cache.interface.proprioception},
            trajectory.instruction,
        )
        action = policy.act(seen)
        batch = loader.gather(loader.centred(torch.tensor([t])))
        with torch.inference_mode():
            features = module.observation(batch.images, batch.proprioception, batch.language)
            expected = module.predict(features, [generator])[0, 0]
        np.testing.assert_allclose(action, expected, atol=1e-4)


def test_what_does_not_fit_is_said(trained: Path, tmp_path: Path) -> None:
    good = shutil.copytree(trained, tmp_path / "good")
    policy = load_policy(good, device="cpu")
    state = {"ee_pos": np.zeros(3), "gripper_states": np.zeros(2)}
    image = np.zeros((32, 32, 3), np.uint8)
    with pytest.raises(StrapError, match=r"needs camera 'agentview_rgb'; there is: agentview"):
        policy.act(Observation({"agentview": image}, state, "x"))
    with pytest.raises(StrapError, match="'ee_pos' has 4 numbers; this policy was trained with 3"):
        policy.act(Observation({"agentview_rgb": image}, state | {"ee_pos": np.zeros(4)}, "x"))
    broken = shutil.copytree(good, tmp_path / "broken")
    data = (broken / "policy.safetensors").read_bytes()
    (broken / "policy.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(StrapError, match=r"policy\.safetensors' is damaged"):
        load_policy(broken)
    config = json.loads((good / "config.json").read_text())
    config["interface"]["action_size"] = 9
    (good / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        StrapError, match=r"does not fit the policy in config\.json: '.*' is float32"
    ):
        load_policy(good)
    (good / "config.json").write_text("{")
    with pytest.raises(StrapError, match=r"cannot read .* as JSON"):
        load_policy(good)
    with pytest.raises(StrapError, match="is not a checkpoint"):
        load_policy(tmp_path / "nowhere")


def test_a_module_of_one_s_own_trains(cache: FrameCache, tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 7)

        def loss(self, batch: Batch) -> torch.Tensor:
            guess = self.linear(batch.proprioception[:, -1])
            return ((guess - batch.actions[:, 0]) ** 2).mean()

    quick = replace(QUICK, steps=200, batch=16, learning_rate=1e-2)
    done = train(cache, tmp_path, policy=SMALL, training=quick, module=Own(), quiet=True)
    rows = [row["loss"] for row in read_log(tmp_path) if "loss" in row]
    assert done.loss < 0.8 * rows[0]
    with pytest.raises(StrapError, match="a module of your own"):
        load_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path, policy=Own()).settings == SMALL


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, frames = str(tmp_path / "k"), str(tmp_path / "frames")
    words = ["train", str(run), "--out", out, "--vision", "frozen", "--text-encoder", "words"]
    words += ["--image-size", "32", "--holdout", "1", "--batch", "4", "--device", "cpu"]
    assert main([*words, "--cache", frames, "--steps", "3"]) == 0
    assert "strap: 3 steps" in capsys.readouterr().out
    assert load_policy(out).settings.vision == "frozen"
    assert (tmp_path / "k" / "tensorboard").is_dir()
    assert main([*words, "--cache", frames, "--steps", "3", "--batch", "0"]) == 2
    assert "batch is 0" in capsys.readouterr().err
    assert main(["train", str(run), "--out", out, "--recipe", "mt", "--alpha", "2"]) == 2
    assert "alpha is 2.0" in capsys.readouterr().err


def test_a_policy_sees_no_further_than_the_run_kept(
    cache: FrameCache, run: Path, tmp_path: Path
) -> None:
    """Today's run keeps 5 frames around its matches; what lies beyond was never retrieved."""
    assert cache.context == (5, 5)
    for clip in (clip for clip in cache.clips if clip.role == "prior"):
        assert any(clip.start == max(0, found.start - 5) for found in cache.retrieved)
    long = replace(SMALL, history=8, chunk=8)
    training = TrainingSettings(recipe="strap", steps=1, batch=2)
    with pytest.raises(StrapError, match=r"keeps 5 frames before and 5 after .* --history 7"):
        train(cache, tmp_path / "a", policy=long, training=training, quiet=True)
    bc = replace(training, recipe="bc")
    assert train(cache, tmp_path / "b", policy=long, training=bc, quiet=True).step == 1


def test_fine_tuning_has_two_phases(frozen: FrameCache, run: Path, tmp_path: Path) -> None:
    quick = replace(QUICK, recipe="ft", pretrain_steps=2)
    assert [quick.rate(step) for step in range(4)] == [5e-4, 1e-3, 5e-4, 1e-3]
    falling = replace(quick, decay=True, warmup=1)
    assert [falling.rate(step) for step in range(4)] == pytest.approx([1e-3, 5e-4, 1e-3, 5e-4])
    own = replace(SMALL, vision="frozen")
    done = train(frozen, tmp_path / "k", policy=own, training=quick, quiet=True)
    assert done.step == 4
    options = CacheOptions(image_size=32, language="words", cameras=("front",))
    with pytest.raises(StrapError, match="unknown camera 'front'"):
        build_cache(open_training_data(run), tmp_path / "d", options)


def test_the_demo_s_two_policies(run: Path, tmp_path: Path) -> None:
    from strap.cli.demo import compare_policies

    told = compare_policies(run, tmp_path, 6, image_size=32).splitlines()
    assert [line.split()[0] for line in told[1:]] == ["bc", "strap"]
    values = [float(line.split()[1]) for line in told[1:]]
    assert np.isfinite(values).all()
    assert values[0] != values[1]


def test_compiling_is_chosen_where_it_pays():

    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    convolves, small = nn.Conv2d(3, 4, 1), nn.Linear(2, 2)
    long, short = TrainingSettings(steps=60_000), TrainingSettings(steps=5_000)
    assert should_compile(convolves, long, gpu) == any(map(shutil.which, ("cc", "gcc", "clang")))
    assert not should_compile(convolves, short, gpu)
    assert not should_compile(small, long, gpu)
    assert not should_compile(convolves, long, cpu)
    assert should_compile(small, replace(short, compile="on"), cpu)
    assert not should_compile(convolves, replace(long, compile="off"), gpu)
    with pytest.raises(StrapError, match="choice for compile 'maybe'"):
        TrainingSettings(compile="maybe")


def test_the_best_weights_of_a_killed_training_are_not_those_of_the_next(
    frozen: FrameCache, tmp_path: Path
) -> None:
    """Killed after its best weights were saved, before its state was."""
    small = replace(SMALL, vision="frozen")
    watched = replace(QUICK, holdout=1, eval_every=1)
    train(frozen, tmp_path, policy=small, training=watched, quiet=True)
    assert (tmp_path / "best.safetensors").is_file()
    (tmp_path / "resume.safetensors").unlink()
    train(frozen, tmp_path, policy=small, training=QUICK, quiet=True)
    assert not (tmp_path / "best.safetensors").exists()


def test_two_processes_do_not_train_into_one_folder(frozen: FrameCache, tmp_path: Path) -> None:
    settings = TrainingSettings(recipe="bc", steps=1, batch=2)
    with (
        exclusive_lock(tmp_path / LOCK, "training"),
        pytest.raises(StrapError, match="another process is training into"),
    ):
        train(frozen, tmp_path, training=settings, quiet=True)
