"""A draft of other borders is what a whole retrieval by those borders gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strap import pipeline
from strap.choices import change_choices, open_choices
from strap.datasets import open_dataset
from strap.embeddings import embed
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run, open_run
from strap.search import reuse
from strap.segments import Segmentation, read_segments
from strap.synthetic import Planted
from strap.view.borders import BorderSearch, draft_borders, keep_borders

PLAIN = RetrievalOptions(encoder="pixels", top_k=20, augmented="none")
OPTIONS = {
    "even": PLAIN,
    "few": replace(PLAIN, top_k=3),
    "released": replace(PLAIN, rule="released"),
    "several in a trajectory": replace(PLAIN, matches_per_trajectory=3, top_k=40),
    "lengths": replace(PLAIN, length_ratio=(1.0, 1.4), matches_per_trajectory=2),
    "auto": replace(PLAIN, top_k="auto"),
    "fraction": replace(PLAIN, top_k=None, fraction=0.3),
    "threshold": replace(PLAIN, top_k=None, threshold=0.7),
    "dear ones dropped": replace(PLAIN, max_cost=40.0),
    "rough ones dropped": replace(PLAIN, max_roughness=30.0),
    "cosine": replace(PLAIN, metric="cosine", steps="classic"),
    "fused": replace(PLAIN, fuse=("gripper=0.5", "position")),
    "random": replace(PLAIN, method="random"),
}
BOUNDARIES: list[dict[str, list[int]]] = [
    {"demo_0": [30, 60]},
    {"demo_0": [25, 60]},
    {"demo_0": [25, 41, 60]},
    {"demo_0": [25], "demo_1": [1, 89]},
    {"demo_1": []},
]


def retrieve(planted: Planted, out: Path, options: RetrievalOptions) -> Run:
    return run_retrieval(
        planted.target, [planted.prior], out, options, stores=out.parent / "stores"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("borders")


@pytest.mark.filterwarnings("ignore:top_k is")
@pytest.mark.parametrize("name", OPTIONS)
def test_a_draft_is_what_a_whole_retrieval_gives(planted: Planted, folder: Path, name: str) -> None:
    run = retrieve(planted, folder / name, OPTIONS[name])
    search = BorderSearch.of(run)
    segments = {key: [30, 60] for key in ("demo_0", "demo_1")}
    for number, boundaries in enumerate(BOUNDARIES):
        draft = draft_borders(search, boundaries)
        file = folder / f"{name}-{number}.json"
        file.write_text(json.dumps({**segments, **boundaries}))
        cut = Segmentation(method="manual", boundaries=file)
        out = folder / f"{name}-{number}"
        whole = retrieve(planted, out, replace(OPTIONS[name], segmentation=cut))
        assert draft.segments == read_segments(out / "segments.json")
        assert draft.matches == whole.matches


def test_only_changed_queries_are_searched(
    planted: Planted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    plain = reuse.search_stores

    def count(queries: Any, *arguments: Any, **options: Any) -> Any:
        searched.append(len(queries))
        return plain(queries, *arguments, **options)

    monkeypatch.setattr(reuse, "search_stores", count)
    search = BorderSearch.of(retrieve(planted, folder / "even", PLAIN))
    draft_borders(search, {"demo_0": [25, 60]})
    assert searched == [6]
    draft_borders(search, {"demo_0": [28, 60]})
    assert searched == [6, 2]  # on both sides of the border
    draft_borders(search, {"demo_0": [25, 60]})
    draft_borders(search, {"demo_0": [25, 60], "demo_1": [30, 60]})
    assert searched == [6, 2]
    before = {path.name for path in search.run.path.iterdir()}
    assert before == {"manifest.json", "matches.parquet", "segments.json"}


def test_kept_borders_are_those_of_the_run(planted: Planted, tmp_path: Path) -> None:
    run = retrieve(planted, tmp_path / "run", replace(PLAIN, augmented="auto", history=3))
    draft = draft_borders(BorderSearch.of(run), {"demo_0": [25, 41, 60]})
    same = [(row, m) for row, m in enumerate(run.matches) if m in draft.matches.rows]
    gone = [row for row, m in enumerate(run.matches) if m not in draft.matches.rows]
    assert same
    assert gone
    change_choices(run.path, run.matches, {"reject": [same[0][0], gone[0]]})
    made = keep_borders(run, {"demo_0": [25, 41, 60]})
    assert made.matches == draft.matches == open_run(run.path).matches
    assert read_segments(run.path / "segments.json") == draft.segments
    arguments = made.manifest["arguments"]
    assert arguments["segmentation"]["method"] == "manual"
    changed = {key for key in arguments if arguments[key] != run.manifest["arguments"][key]}
    assert changed == {"segmentation"}
    assert made.augmented is not None
    kept = open_choices(run.path).describe(made.matches)
    assert kept["rejected"] == [made.matches.rows.index(same[0][1])]
    # Again, by a file of the same name with other borders.
    again = keep_borders(made, {"demo_1": [45]})
    assert not again.reused
    cut = read_segments(run.path / "segments.json")
    assert [str(s) for s in cut][:4] == [
        *("demo_0[0:25]", "demo_0[25:41]", "demo_0[41:60]", "demo_0[60:90]"),
    ]
    assert [str(s) for s in cut][4:] == ["demo_1[0:45]", "demo_1[45:90]"]
    assert draft_borders(BorderSearch.of(again), {}).matches == again.matches


@pytest.mark.parametrize("part", ["prepare_features", "_augment"])
def test_where_keeping_fails_the_run_is_what_it_was(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    run = retrieve(planted, tmp_path / "run", PLAIN)

    def fail(*_: Any, **__: Any) -> None:
        raise StrapError("the encoder is not here")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, part, fail)
        with pytest.raises(StrapError, match="the encoder is not here"):
            keep_borders(run, {"demo_0": [25]})
    assert open_run(run.path) == replace(run, reused=True)
    assert draft_borders(BorderSearch.of(run), {}).matches == run.matches
    assert not (run.path / "boundaries.json").exists()
    made = keep_borders(run, {"demo_0": [25]})
    kept = (run.path / "boundaries.json").read_text()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, part, fail)
        with pytest.raises(StrapError, match="the encoder is not here"):
            keep_borders(made, {"demo_0": [35]})
    assert (run.path / "boundaries.json").read_text() == kept
    assert open_run(run.path) == replace(made, reused=True)


def test_an_edited_boundaries_file_is_noticed(planted: Planted, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    file.write_text('{"demo_0": [30, 60], "demo_1": [30]}')
    options = replace(PLAIN, segmentation=Segmentation(method="manual", boundaries=file))
    assert not retrieve(planted, tmp_path / "run", options).reused
    assert retrieve(planted, tmp_path / "run", options).reused
    file.write_text('{"demo_0": [20, 60], "demo_1": [30]}')
    made = retrieve(planted, tmp_path / "run", options)
    assert not made.reused
    assert made.matches.queries[0].stop == 20


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ({"demo_7": [3]}, "unknown demonstration 'demo_7'"),
        ({"demo_0": [0, 30]}, r"boundaries of 'demo_0' are \[0, 30\]: .* from 1 to 89"),
        ({"demo_0": [30, 90]}, r"are \[30, 90\]"),
        ({"demo_0": [60, 30]}, "increasing"),
        ({"demo_0": [30, 30]}, "increasing"),
        ({"demo_0": [30.0]}, r"are \[30\.0\]"),
        ({"demo_0": [True]}, r"are \[True\]"),
        ({"demo_0": "12"}, "are '12'"),
        ({"demo_0": None}, "are None"),
    ],
)
def test_borders_that_are_none(
    planted: Planted, folder: Path, boundaries: Any, message: str
) -> None:
    run = retrieve(planted, folder / "even", PLAIN)
    with pytest.raises(StrapError, match=message):
        draft_borders(BorderSearch.of(run), boundaries)
    with pytest.raises(StrapError, match=message):
        keep_borders(run, boundaries)
    assert not (run.path / "boundaries.json").exists()


@pytest.mark.parametrize(
    "segments",
    [[(4, 20), (26, 80)], [(0, 50), (30, 90)], [(0, 30), (30, 80)], [(30, 90), (0, 30)]],
    ids=["gap", "overlap", "end", "order"],
)
def test_segments_that_do_not_tile_stay_as_they_are(
    planted: Planted, tmp_path: Path, segments: list[tuple[int, int]]
) -> None:
    rows = [{"trajectory": "demo_0", "start": a, "stop": b} for a, b in segments]
    whole = {"trajectory": "demo_1", "start": 0, "stop": 90}
    file = tmp_path / "b.json"
    file.write_text(json.dumps({"segments": [*rows, whole]}))
    cut = Segmentation(method="manual", boundaries=file)
    run = retrieve(planted, tmp_path / "run", replace(PLAIN, segmentation=cut))
    for change in (
        lambda b: draft_borders(BorderSearch.of(run), b),
        lambda b: keep_borders(run, b),
    ):
        with pytest.raises(StrapError, match=r"of 'demo_0' leave frames out .* --boundaries FILE"):
            change({"demo_0": [27]})
    assert open_run(run.path) == replace(run, reused=True)
    made = keep_borders(run, {"demo_1": [45]})
    others = [("demo_1", 0, 45), ("demo_1", 45, 90)]
    found = [(s.trajectory_id, s.start, s.stop) for s in read_segments(made.path / "segments.json")]
    assert found == [*(("demo_0", *ends) for ends in segments), *others]


@pytest.mark.parametrize("encoder", ["pixels", ""])
def test_keeping_borders_embeds_nothing_again(
    own_planted: Planted, tmp_path: Path, encoder: str
) -> None:
    places = []
    for data in (own_planted.target, own_planted.prior):
        places.append(tmp_path / data.stem / data.name)
        places[-1].parent.mkdir()
        data.rename(places[-1])
    target, prior = places
    # The small store lies beside its dataset, the big one in the folder of stores.
    embed(open_dataset(target), "pixels", target.parent / "small")
    embed(open_dataset(prior), "pixels", tmp_path / "stores" / "big")
    options = replace(PLAIN, encoder=encoder)
    run = run_retrieval(target, [prior], tmp_path / "run", options, stores=tmp_path / "stores")
    before = sorted(tmp_path.rglob("store.json"))
    assert len(before) == 2
    made = keep_borders(run, {"demo_0": [25]})
    assert made.manifest["stores"] == run.manifest["stores"]
    assert sorted(tmp_path.rglob("store.json")) == before


def test_a_named_store_does_not_say_where_the_others_are(planted: Planted, tmp_path: Path) -> None:
    named = tmp_path / "named"
    embed(open_dataset(planted.target), "pixels", named)
    out, stores = tmp_path / "run", tmp_path / "stores"
    run = run_retrieval(named, [planted.prior], out, PLAIN, stores=stores)
    made = keep_borders(run, {"demo_0": [25]})
    assert made.manifest["stores"] == run.manifest["stores"]


def test_whole_demonstrations_have_no_borders(planted: Planted, tmp_path: Path) -> None:
    run = retrieve(planted, tmp_path / "run", replace(PLAIN, method="d-t"))
    with pytest.raises(StrapError, match="'d-t' compares whole demonstrations"):
        BorderSearch.of(run)


def test_the_cameras_that_were_compared_are_compared_again(tmp_path: Path) -> None:
    from tests.stores import write_dataset

    data = write_dataset(tmp_path / "a.hdf5")
    for number, cameras in enumerate(((), ("right",))):
        cut = Segmentation(method="window")
        options = replace(PLAIN, cameras=cameras, top_k=60, segmentation=cut)
        out = tmp_path / f"run-{number}"
        with pytest.warns(UserWarning, match="is target and prior"):
            run = run_retrieval(data, [data], out, options, stores=tmp_path / "stores")
        assert draft_borders(BorderSearch.of(run), {}).matches == run.matches
        older = {k: v for k, v in run.manifest.items() if k != "store_cameras"}
        old = replace(run, manifest=older)
        assert draft_borders(BorderSearch.of(old), {}).matches == run.matches
        shutil.rmtree(out)
