"""`--top-k auto`: what costs no more than demonstrations cost each other, against a slow twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests import naive
from tests.stores import make_store

from strap.cli import main
from strap.errors import StrapError
from strap.retrieval import Catalogue, MatchOptions, retrieve_matches
from strap.retrieval.catalogue import CatalogueEntry
from strap.retrieval.demonstration_costs import LANGUAGE_ALLOWANCE
from strap.runs import open_run
from strap.store import EmbeddingStore
from strap.synthetic import Planted
from strap.types import Segment

AUTO = MatchOptions(top_k="auto")


def catalogue(store: EmbeddingStore, instructions: dict[str, str]) -> Catalogue:
    entries = {
        key: CatalogueEntry(store.entry(key).length, instructions.get(key, "do it"), key)
        for key in store.ids
    }
    return Catalogue("target", entries, store)


def made(folder: Path, fused: list | None = None) -> tuple[EmbeddingStore, EmbeddingStore]:
    """Three noisy demonstrations of one path, and a prior that leaves it more and more."""
    rng = np.random.default_rng(3)
    path = np.cumsum(rng.standard_normal((30, 3)), axis=0)
    ours = {f"d{i}": path + 0.3 * rng.standard_normal(path.shape) for i in range(3)}
    prior = {f"t{i}": path[:14] + 0.03 * i * rng.standard_normal((14, 3)) for i in range(30)}
    return make_store(folder / "a", ours, fused=fused), make_store(folder / "b", prior, fused=fused)


def windows(store: EmbeddingStore) -> list[Segment]:
    return [Segment(key, start, start + 3) for key in store.ids for start in range(0, 30, 3)]


def naive_auto(
    target: EmbeddingStore, prior: EmbeddingStore, allowance: float = 1.0
) -> dict[Segment, list[str]]:
    """For each query the trajectories whose match is cheap enough, cheapest first."""
    found = {}
    for query in windows(target):
        frames = np.asarray(target[query.trajectory_id], np.float64)[query.start : query.stop]

        def cost(store: EmbeddingStore, key: str, frames: np.ndarray = frames) -> float:
            return naive.best_match(frames, np.asarray(store[key], np.float64), "strap", "l2")[0]

        limit = max(cost(target, key) for key in target.ids if key != query.trajectory_id)
        costs = sorted((cost(prior, key), key) for key in prior.ids)
        found[query] = [key for value, key in costs if value <= allowance * limit]
    return found


def by_query(found: list) -> dict[Segment, list[str]]:
    kept: dict[Segment, list[str]] = {}
    for match in found:
        kept.setdefault(match.query, []).append(match.segment.trajectory_id)
    return kept


def test_every_match_below_the_demonstrations_costs_is_kept(tmp_path: Path) -> None:
    target, prior = made(tmp_path)
    found = retrieve_matches(windows(target), catalogue(target, {}), [prior], AUTO)
    expected = {query: keys for query, keys in naive_auto(target, prior).items() if keys}
    assert by_query(found.matches) == expected
    counts = [len(keys) for keys in expected.values()]
    assert max(counts) > 4 * 100 // 30  # more than the first search looks for
    assert len(expected) < 30
    assert found.reason is not None
    assert found.reason.startswith(
        f"K = {sum(counts)}: this many matches cost no more than their query"
    )
    assert found.reason.endswith(f"{30 - len(expected)} of 30 queries have none")


def test_compared_instructions_are_allowed_for(tmp_path: Path) -> None:
    target, prior = made(tmp_path, [["language", 1.0]])
    found = retrieve_matches(windows(target), catalogue(target, {}), [prior], AUTO).matches
    expected = naive_auto(target, prior, LANGUAGE_ALLOWANCE)
    assert by_query(found) == {query: keys for query, keys in expected.items() if keys}
    assert expected != naive_auto(target, prior)


def test_a_cost_limit_holds_besides(tmp_path: Path) -> None:
    target, prior = made(tmp_path)
    options = MatchOptions(top_k="auto", max_cost=0.3)
    found = retrieve_matches(windows(target), catalogue(target, {}), [prior], options).matches
    every = retrieve_matches(windows(target), catalogue(target, {}), [prior], AUTO).matches
    assert [m for m in every if m.cost <= 0.3 * len(m.query)] == list(found)
    assert 0 < len(found) < len(every)


def test_where_auto_has_nothing_to_compare_is_told(tmp_path: Path) -> None:
    target, prior = made(tmp_path)
    alone = catalogue(target, {"d1": "do something else"})
    with pytest.raises(
        StrapError, match="'d1' is the only one of 'do something else': give a number"
    ):
        retrieve_matches(windows(target), alone, [prior], AUTO)
    far = make_store(tmp_path / "far", {"t": np.full((20, 3), 1e3)})
    with pytest.raises(StrapError, match="if --top-k auto finds nothing as near as"):
        retrieve_matches(windows(target), catalogue(target, {}), [far], AUTO)
    for method in ("d-s", "random", "language"):
        with pytest.raises(StrapError, match=f"method '{method}' has none: give a number"):
            MatchOptions(top_k="auto", method=method)
    with pytest.raises(StrapError, match="top_k is many: it must be at least 1, or auto"):
        MatchOptions(top_k="many")


@pytest.mark.slow
def test_auto_from_the_command_line(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--augmented", "none", "--stores", str(tmp_path / "stores")]
    assert main([*call, "--out", str(tmp_path / "run"), "--top-k", "auto"]) == 0
    run = open_run(tmp_path / "run")
    assert f"top_k: K = {len(run.matches)}: " in capsys.readouterr().out
    found = {(match.query, match.segment) for match in run.matches}
    assert {(plant.query, plant.segment) for plant in planted.plants} <= found
