"""What one command makes, the next one takes: stores, runs, one dataset as target and prior."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import h5py
import pytest

import strap
from strap.cli import main
from strap.conversion import convert
from strap.encoders import EncoderSpec, FunctionEncoder, PixelEncoder
from strap.runs import open_run
from strap.store import open_store
from strap.synthetic import Planted, make_planted


def embedded(dataset: Path, out: Path, *words: str) -> Path:
    assert main(["embed", str(dataset), "--encoder", "pixels", "--out", str(out), *words]) == 0
    return out


def retrieved(run: Path, *words: str | Path) -> dict[str, str]:
    """The stores of a retrieval, by dataset; without what follows from its matches."""
    less = ["--report", "none", *([] if "--augmented" in words else ["--augmented", "none"])]
    assert main(["retrieve", *map(str, words), "--top-k", "4", *less, "--out", str(run)]) == 0
    stores: dict[str, str] = open_run(run).manifest["stores"]
    return stores


def test_stores_are_searched_by_their_names(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = embedded(planted.prior, tmp_path / "embedded elsewhere", "--dtype", "float32")
    before = sorted(prior.rglob("*.npy"))
    words = ["--dtype", "float32", "--target", planted.target, "--prior"]
    stores = retrieved(tmp_path / "run", *words, prior)
    assert stores[str(planted.prior)] == str(prior)
    assert sorted(prior.rglob("*.npy")) == before
    assert f"embeddings: {prior}" in capsys.readouterr().out
    other = tmp_path / "other"
    retrieved(other, *words, planted.prior, "--encoder", "pixels", "--stores", tmp_path / "new")
    assert open_run(other).matches == open_run(tmp_path / "run").matches
    assert {match.dataset for match in open_run(tmp_path / "run").matches} == {str(planted.prior)}


def test_a_store_of_any_name_is_found_in_the_folder_of_stores(
    planted: Planted, tmp_path: Path
) -> None:
    stores = tmp_path / "stores"
    prior = embedded(planted.prior, stores / "prior")
    words = ["--target", planted.target, "--prior", planted.prior, "--stores", stores]
    assert retrieved(tmp_path / "run", *words)[str(planted.prior)] == str(prior.resolve())
    assert len(list(stores.iterdir())) == 2  # the prior's, and the target's, which was missing


def test_a_store_beside_its_dataset_is_found(own_planted: Planted, tmp_path: Path) -> None:
    prior = embedded(own_planted.prior, own_planted.prior.parent / "of the prior")
    words = ["--target", own_planted.target, "--prior", own_planted.prior, "--encoder", "pixels"]
    found = retrieved(tmp_path / "run", *words)
    assert found[str(own_planted.prior)] == str(prior.resolve())


def test_a_store_of_a_dataset_that_was_moved_is_found_by_its_files(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = embedded(own_planted.prior, tmp_path / "stores" / "prior")
    moved = tmp_path / "moved" / own_planted.prior.name
    moved.parent.mkdir()
    shutil.move(own_planted.prior, moved)
    words = ["retrieve", "--target", str(own_planted.target), "--out", str(tmp_path / "run")]
    assert main([*words, "--prior", str(prior)]) == 2
    assert f"--stores '{prior.parent}'" in capsys.readouterr().err
    found = retrieved(
        tmp_path / "run",
        *("--target", own_planted.target, "--prior", moved, "--stores", prior.parent),
    )
    assert found[str(moved)] == str(prior.resolve())
    assert {match.dataset for match in open_run(tmp_path / "run").matches} == {str(moved)}


def test_what_a_named_store_lacks_is_embedded(planted: Planted, tmp_path: Path) -> None:
    half = embedded(planted.prior, tmp_path / "half", "--episodes", "0:5")
    lacking = len(strap.open_dataset(planted.prior)) - len(open_store(half))
    assert lacking > 0
    retrieved(tmp_path / "run", "--target", planted.target, "--prior", half)
    assert len(open_store(half)) == len(strap.open_dataset(planted.prior))


def test_a_found_store_that_lacks_something_is_completed(
    own_planted: Planted, tmp_path: Path
) -> None:
    stores = tmp_path / "stores"
    prior = embedded(own_planted.prior, stores / "prior", "--episodes", "0:5")
    os.utime(own_planted.prior)  # the same trajectories in a file of another time
    words = ["--target", own_planted.target, "--prior", own_planted.prior, "--stores", stores]
    assert retrieved(tmp_path / "run", *words)[str(own_planted.prior)] == str(prior.resolve())
    assert len(open_store(prior)) == len(strap.open_dataset(own_planted.prior))


def test_another_store_is_another_run(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (embedded(planted.prior, tmp_path / name) for name in ("one", "other"))
    words = ["--target", planted.target, "--prior"]
    retrieved(tmp_path / "run", *words, one)
    again = ["retrieve", *map(str, words), str(other), "--top-k", "4"]
    assert main([*again, "--out", str(tmp_path / "run")]) == 2
    assert "named_stores" in capsys.readouterr().err


def test_the_stores_encoder_and_the_one_asked_for_must_agree(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coarse = tmp_path / "coarse"
    strap.embed(strap.open_dataset(planted.prior), PixelEncoder(2), coarse)
    words = ["retrieve", "--target", str(planted.target), "--prior", str(coarse)]
    assert main([*words, "--encoder", "pixels", "--out", str(tmp_path / "run")]) == 2
    assert "leave out --encoder" in capsys.readouterr().err
    # Nobody said how its vectors are made in words that can be loaded again.
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "--target STORE" in capsys.readouterr().err
    target = tmp_path / "target"
    strap.embed(strap.open_dataset(planted.target), PixelEncoder(2), target)
    retrieved(tmp_path / "run", "--target", target, "--prior", coarse)


def test_stores_by_different_encoders_need_a_word(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embedded(planted.prior, tmp_path / "stores" / "fine")
    strap.embed(strap.open_dataset(planted.prior), PixelEncoder(2), tmp_path / "stores" / "coarse")
    words = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    words += ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert "different encoders" in capsys.readouterr().err
    assert main([*words, "--encoder", "pixels", "--top-k", "4"]) == 0


def test_a_store_never_names_code_to_import(
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    encoder = FunctionEncoder(lambda images: images.mean(axis=(1, 2)), name="trap:encode")
    strap.embed(strap.open_dataset(planted.prior), encoder, store)
    words = ["retrieve", "--target", str(planted.target), "--prior", str(store)]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "only on request: give --encoder trap:encode" in capsys.readouterr().err


def test_a_damaged_neighbour_is_no_store(own_planted: Planted, tmp_path: Path) -> None:
    neighbour = own_planted.prior.parent / "broken"
    neighbour.mkdir()
    (neighbour / "store.json").write_text("{")
    words = ["--target", own_planted.target, "--prior", own_planted.prior, "--encoder", "pixels"]
    retrieved(tmp_path / "run", *words)


def test_more_cameras_than_are_asked_for_serve_too(dataset: Path, tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    both = embedded(dataset, stores / "both")
    words = ["--target", dataset, "--prior", dataset, "--segmentation", "full", "--cameras", "left"]
    found = retrieved(tmp_path / "run", *words, "--stores", stores, "--target-episodes", "0:2")
    assert found == {str(dataset): str(both.resolve())}
    alone = retrieved(tmp_path / "alone", *words, "--encoder", "pixels", "--target-episodes", "0:2")
    assert alone != found
    assert open_run(tmp_path / "run").matches == open_run(tmp_path / "alone").matches


def test_the_encoder_of_a_transformers_store_is_loaded_as_it_was(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.test_encoders import dinov2

    torch.manual_seed(0)
    model, processor = dinov2()
    assert isinstance(model, transformers.PreTrainedModel)
    model.save_pretrained(tmp_path / "vit")
    processor.save_pretrained(tmp_path / "vit")  # type: ignore[attr-defined]
    for spec in (
        EncoderSpec(str(tmp_path / "vit"), pooling="cls", layer=-2),
        EncoderSpec(str(tmp_path / "vit"), preset="released"),
    ):
        config = json.loads(json.dumps(dict(spec.load("cpu").config)))  # as a store keeps it
        assert (
            json.loads(json.dumps(dict(EncoderSpec.from_config(config).load("cpu").config)))
            == config
        )


def test_the_augmented_dataset_is_as_the_target_is(planted: Planted, tmp_path: Path) -> None:
    target = tmp_path / "target"
    convert(strap.open_dataset(planted.target), target)
    prior = tmp_path / "prior"
    convert(strap.open_dataset(planted.prior), prior)
    words = ["--prior", prior, "--encoder", "pixels"]
    retrieved(tmp_path / "a", "--target", target, *words, "--augmented", "auto")
    assert open_run(tmp_path / "a").augmented == tmp_path / "a" / "augmented"
    assert strap.open_dataset(tmp_path / "a" / "augmented").format == "lerobot-v3.0"
    retrieved(tmp_path / "b", "--target", target, *words, "--augmented", "robomimic")
    assert open_run(tmp_path / "b").augmented == tmp_path / "b" / "augmented.hdf5"
    retrieved(tmp_path / "b", "--target", target, *words, "--augmented", "none", "--overwrite")
    assert open_run(tmp_path / "b").augmented is None


def test_one_dataset_is_target_and_prior_by_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = make_planted(tmp_path / "data")
    words = ["--target", planted.prior, "--target-episodes", "0:2", "--prior", planted.prior]
    words += ["--prior-episodes", "2:", "--encoder", "pixels", "--segmentation", "full"]
    stores = retrieved(tmp_path / "run", *words)
    assert len(stores) == 1
    ids = strap.open_dataset(planted.prior).ids
    matches = open_run(tmp_path / "run").matches
    assert len(matches) == 4
    assert {match.query.trajectory_id for match in matches} <= set(ids[:2])
    assert {match.segment.trajectory_id for match in matches} <= set(ids[2:])


def test_a_target_that_is_its_own_prior_is_remarked(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--target", planted.target, "--prior", planted.target, "--encoder", "pixels"]
    retrieved(tmp_path / "run", *words)
    assert "is target and prior: 2 of its demonstrations" in capsys.readouterr().err
    both = ["--target", planted.target, "--prior", planted.target, planted.prior]
    retrieved(tmp_path / "all", *both, "--encoder", "pixels", "--shared", "all")
    assert "is target and prior" not in capsys.readouterr().err


def test_a_prior_that_is_given_twice_is_searched_once(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.hdf5"
    link.symlink_to(planted.prior)
    words = ["--target", planted.target, "--encoder", "pixels", "--prior", planted.prior]
    retrieved(tmp_path / "once", *words)
    capsys.readouterr()
    retrieved(tmp_path / "twice", *words, link)
    assert f"prior '{link}' is given twice: it is used once" in capsys.readouterr().err
    assert open_run(tmp_path / "twice").matches == open_run(tmp_path / "once").matches


def test_a_run_of_linked_files_is_used_as_any_other(planted: Planted, tmp_path: Path) -> None:
    links = []
    for file in (planted.target, planted.prior):
        links.append(tmp_path / f"a-{file.name}")
        links[-1].symlink_to(file)
    words = ["--target", links[0], "--prior", links[1], "--encoder", "pixels"]
    retrieved(tmp_path / "run", *words)
    out = tmp_path / "weights"
    assert main(["export", str(tmp_path / "run"), "--as", "weights", "--out", str(out)]) == 0


def test_boundaries_of_another_dataset_are_remarked(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "segments.json"
    assert main(["segment", str(planted.target), "--out", str(cut)]) == 0
    words = [
        "--segmentation",
        "manual",
        "--boundaries",
        str(cut),
        "--out",
        str(tmp_path / "b.json"),
    ]
    assert main(["segment", str(planted.target), *words]) == 0
    assert "were cut for" not in capsys.readouterr().err
    moved = shutil.copy(planted.target, tmp_path / "moved.hdf5")
    assert main(["segment", str(moved), *words]) == 0
    assert f"the segments in '{cut}' were cut for '{planted.target}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--history", "-1"], "history is -1: it must be at least 0"),
        (["--chunk", "-3"], "chunk is -3: it must be at least 0"),
        (["--method", "random", "--seed", "-1"], "seed is -1: it must be at least 0"),
        (["--matches-per-trajectory", "0"], "matches_per_trajectory is 0"),
    ],
)
def test_numbers_that_mean_nothing_are_noticed_before_the_work(
    planted: Planted,
    tmp_path: Path,
    words: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = ["--target", str(planted.target), "--prior", str(planted.prior), "--encoder", "pixels"]
    assert main(["retrieve", *data, *words, "--out", str(tmp_path / "run")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["retrieve", "--target", "T", "--prior", "P", "--encoder", "pixels", "--backend", "gpu"],
        ["train", "T", "--device", "cuda:7"],
        ["embed", "T", "--encoder", "efficientnet-lite0", "--devices", "cuda:7"],
    ],
)
def test_a_device_that_is_not_there_is_noticed_before_the_work(
    planted: Planted,
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a GPU")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    named = [{"T": str(planted.target), "P": str(planted.prior)}.get(w, w) for w in words]
    assert main([*named, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "torch sees no GPU" in told or "no NVIDIA driver" in told
    assert not any(tmp_path.iterdir())
    assert not list(Path(os.environ["STRAP_CACHE"]).rglob("*"))


def test_actions_that_cannot_be_mixed_are_noticed_before_the_work(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = tmp_path / "narrow.hdf5"
    shutil.copy(planted.prior, narrow)
    with h5py.File(narrow, "r+") as file:
        for demo in file["data"].values():
            actions = demo["actions"][:, :6]
            del demo["actions"]
            demo["actions"] = actions
    words = ["--target", planted.target, "--prior", narrow, "--encoder", "pixels"]
    assert main(["retrieve", *map(str, words), "--out", str(tmp_path / "run")]) == 2
    assert "with --augmented none you still get the matches" in capsys.readouterr().err
    assert not list(Path(os.environ["STRAP_CACHE"]).rglob("*"))
    retrieved(tmp_path / "run", *words, "--augmented", "none")


def test_a_store_of_pictures_that_lie_otherwise_is_left_alone(
    planted: Planted, tmp_path: Path
) -> None:
    stores = tmp_path / "stores"
    prior = embedded(planted.prior, stores / "prior")
    before = (prior / "manifest.json").read_text()
    words = ["--target", planted.target, "--prior", planted.prior, "--encoder", "pixels"]
    words += ["--stores", stores, "--orientation", "upright"]
    assert retrieved(tmp_path / "run", *words)[str(planted.prior)] != str(prior.resolve())
    assert (prior / "manifest.json").read_text() == before


@pytest.mark.parametrize("is_older", [False, True])
def test_the_dataset_of_a_store_is_read_as_it_was_for_the_store(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_older: bool
) -> None:
    target, prior = (
        embedded(file, tmp_path / f"{file.stem} store", "--orientation", "upright")
        for file in (planted.target, planted.prior)
    )
    for store in (target, prior) if is_older else ():  # its manifest alone tells the orientation
        identity = json.loads((store / "store.json").read_text())
        assert identity.pop("opening") == {"orientation": "upright"}
        (store / "store.json").write_text(json.dumps(identity))
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.npy")}
    retrieved(tmp_path / "run", "--target", target, "--prior", prior)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.npy")} == before
    assert [d["demo_0"].orientation for d in _all(*open_run(tmp_path / "run").datasets())] == [
        *("upright", "upright")
    ]
    words = ["retrieve", "--target", str(target), "--prior", str(prior), "--out"]
    assert main([*words, str(tmp_path / "x"), "--orientation", "flipped"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "was made with --orientation upright, not flipped: leave --orientation out" in error


def _all(target: strap.Dataset, priors: list[strap.Dataset]) -> list[strap.Dataset]:
    return [target, *priors]


def test_a_store_that_was_begun_remembers_how_its_dataset_is_read(
    planted: Planted, tmp_path: Path
) -> None:
    part = ("--part", "1/2")
    store = embedded(planted.prior, tmp_path / "store", "--orientation", "upright", *part)
    (store / "manifest.json").unlink(missing_ok=True)
    retrieved(tmp_path / "run", "--target", planted.target, "--prior", store)
    assert open_store(store).manifest["orientation"] == "upright"
    embedded(planted.prior, store)  # as the format says: the store is that from here on
    retrieved(tmp_path / "other", "--target", planted.target, "--prior", store)
    assert open_store(store).manifest["orientation"] == "flipped"


def test_options_that_a_store_was_made_without_are_refused(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = embedded(planted.prior, tmp_path / "store")
    words = ["retrieve", "--target", str(store), "--prior", str(store), "--out", "x"]
    assert main([*words, "--rlds-camera", "image"]) == 2
    assert "was made with no --rlds-camera, not image" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--format", "lerobot"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "was made with --format libero, not lerobot: leave --format out" in error


def test_a_store_that_names_no_encoder_is_no_traceback(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = embedded(planted.prior, tmp_path / "store")
    identity = json.loads((store / "store.json").read_text())
    identity["encoder"] = {"kind": "br"}  # as learned features are kept
    (store / "store.json").write_text(json.dumps(identity))
    words = ["retrieve", "--target", str(planted.target), "--prior", str(store)]
    assert main([*words, "--encoder", "pixels", "--out", str(tmp_path / "run")]) == 2
    assert "leave out --encoder" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "names no encoder" in capsys.readouterr().err


def test_a_found_store_has_the_cameras_of_the_priors_store(dataset: Path, tmp_path: Path) -> None:
    """The target's store by other cameras is passed over."""
    stores = tmp_path / "stores"
    embedded(dataset, stores / "left alone", "--cameras", "left")
    right = embedded(dataset, tmp_path / "right", "--cameras", "right")
    words = ["--target", dataset, "--target-episodes", "0:2", "--prior", right, "--stores", stores]
    retrieved(tmp_path / "run", *words, "--segmentation", "full")


def with_cameras(planted: Planted, folder: Path, *names: str) -> Path:
    """The planted prior, its agent view by these names."""
    folder.mkdir()
    file = Path(shutil.copy(planted.prior, folder / planted.prior.name))
    with h5py.File(file, "a") as handle:
        for demo in handle["data"].values():
            images = demo["obs/agentview_rgb"][:]
            del demo["obs/agentview_rgb"]
            for name in names:
                demo[f"obs/{name}"] = images
    return file


@pytest.mark.parametrize(
    ("target", "prior", "compared"),
    [
        (("front", "wrist"), ("front", "side", "wrist"), [["front", "wrist"]] * 2),
        (("front", "side", "wrist"), ("front", "wrist"), [["front", "wrist"]] * 2),
        (("front",), ("agentview_rgb", "front"), [["front"]] * 2),
        (
            ("agentview_rgb", "wrist"),
            ("agentview_image", "hand"),
            [["agentview_rgb"], ["agentview_image"]],
        ),
    ],
)
def test_cameras_that_both_have_are_compared(
    planted: Planted,
    tmp_path: Path,
    target: tuple[str, ...],
    prior: tuple[str, ...],
    compared: list[list[str]],
) -> None:
    files = (
        with_cameras(planted, tmp_path / "t", *target),
        with_cameras(planted, tmp_path / "p", *prior),
    )
    words = ["--target", files[0], "--prior", files[1], "--encoder", "pixels"]
    retrieved(tmp_path / "run", *words, "--stores", tmp_path / "stores")
    told = open_run(tmp_path / "run").manifest["store_cameras"]
    assert [told[str(file)] for file in files] == compared


def test_different_cameras_are_compared_only_where_somebody_said_so(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = with_cameras(planted, tmp_path / "t", "front", "wrist")
    prior = with_cameras(planted, tmp_path / "p", "agentview_rgb", "wrist")
    store = embedded(prior, tmp_path / "prior store")
    for given, encoder in ((prior, ["--encoder", "pixels"]), (store, [])):
        words = ["retrieve", "--target", str(target), "--prior", str(given), *encoder]
        assert main([*words, "--out", str(tmp_path / "x")]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert "has camera front, wrist to compare" in error
        assert (
            "has agentview_rgb: name with --cameras those that both have (wrist), or embed" in error
        )
    words = ["--target", target, "--prior", prior, "--encoder", "pixels", "--cameras", "wrist"]
    retrieved(tmp_path / "named", *words, "--stores", tmp_path / "stores")
    front = embedded(target, tmp_path / "target store", "--cameras", "front")
    retrieved(tmp_path / "run", "--target", front, "--prior", store)
    alone = with_cameras(planted, tmp_path / "one", "front")  # one camera: there is no choice
    retrieved(tmp_path / "other", "--target", alone, "--prior", store)
