"""Weigh matches by how much more likely their frames are in the target than in the prior.

A logistic regression distinguishes the target's frames from a sample of the prior's, by the
features that the retrieval compared. Both classes have the same total weight, so the odds are
p_target / p_prior.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from strap.errors import StrapError
from strap.runs import Run
from strap.segments import read_segments
from strap.store import EmbeddingStore, open_store

Floats = npt.NDArray[np.float64]
SAMPLE = 10_000
"""frames of the prior that are sampled for the regression"""
PENALTY = 1e-4
"""L2 penalty of the coefficients, for features whose variances sum to 1"""
LIMIT = 10.0
"""p_target / p_prior of a frame is clipped to 1 / LIMIT … LIMIT"""


@dataclass(frozen=True, eq=False)
class DensityRatio:
    """A fitted model of p_target / p_prior, the density ratio of a frame."""

    mean: Floats  # [d], mean frame of the prior
    coefficients: Floats  # [d]
    intercept: float

    def of(self, frames: npt.NDArray[np.floating]) -> Floats:
        """Return p_target / p_prior of frames [t d], clipped to 1 / LIMIT … LIMIT."""
        logits = (frames.astype(np.float64) - self.mean) @ self.coefficients + self.intercept
        return np.asarray(np.exp(np.clip(logits, -np.log(LIMIT), np.log(LIMIT))))


def fit_density_ratio(
    target: npt.NDArray[np.floating], prior: npt.NDArray[np.floating], penalty: float = PENALTY
) -> DensityRatio:
    """Fit a logistic regression with an L2 penalty between frames of the target and of the prior.

    Args:
        target: frames [n d].
        prior: frames [m d].
        penalty: L2 penalty of the coefficients, for features divided by the prior's deviation.
    """
    mean = prior.mean(axis=0, dtype=np.float64)
    spread = float(np.sqrt(((prior - mean) ** 2).sum(axis=1).mean())) or 1.0
    x = (np.concatenate([target, prior]) - mean) / spread
    sign = np.repeat([1.0, -1.0], [len(target), len(prior)])
    share = np.repeat([0.5 / len(target), 0.5 / len(prior)], [len(target), len(prior)])

    def loss(parameters: Floats) -> tuple[float, Floats]:
        w, margins = parameters[:-1], sign * (x @ parameters[:-1] + parameters[-1])
        slope = -share * sign * np.exp(-np.logaddexp(0, margins))  # d loss / d logit, per frame
        gradient = np.append(slope @ x + penalty * w, slope.sum())
        return float(share @ np.logaddexp(0, -margins) + penalty / 2 * w @ w), gradient

    fitted = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return DensityRatio(mean, fitted[:-1] / spread, float(fitted[-1]))


def weigh_by_importance(run: Run, *, seed: int = 0) -> list[float]:
    """Return a weight for every match of a run: the mean p_target / p_prior of its frames.

    The mean of the weights is 1. The features come from the embedding stores of the run.
    """
    stores = _open_stores(run)
    target = stores[str(run.manifest["arguments"]["target"])]
    keys = {segment.trajectory_id for segment in read_segments(run.path / "segments.json")}
    target_frames = np.concatenate([target[key] for key in sorted(keys)])
    priors = [stores[str(name)] for name in run.manifest["arguments"]["prior"]]
    pool = [(s, key) for s in priors for key in s.ids if s.path != target.path or key not in keys]
    if not pool:
        raise StrapError("the prior holds no trajectory except the target's: nothing to compare")
    ratio = fit_density_ratio(target_frames, _sample(pool, np.random.default_rng(seed)))
    raw = [
        ratio.of(stores[m.dataset][m.segment.trajectory_id][m.segment.start : m.segment.stop])
        for m in run.matches
    ]
    means = np.array([values.mean() for values in raw])
    return [float(weight) for weight in means / means.mean()]


def _open_stores(run: Run) -> dict[str, EmbeddingStore]:
    """Return the stores of a run, by the names of their datasets."""
    paths = run.manifest.get("stores")
    wanted = [run.manifest["arguments"]["target"], *run.manifest["arguments"]["prior"]]
    if not isinstance(paths, dict) or not all(isinstance(paths.get(n), str) for n in wanted):
        raise StrapError(
            f"'{run.path}' compares no stored features, from which importance would be estimated: "
            "retrieve with --method strap, d-t or d-s, or weigh by cost"
        )
    return {name: open_store(paths[name]) for name in wanted}


def _sample(
    pool: Sequence[tuple[EmbeddingStore, str]], rng: np.random.Generator
) -> npt.NDArray[np.floating]:
    """Return SAMPLE frames of the trajectories, drawn uniformly; all frames if they are fewer."""
    lengths = [store.entry(key).length for store, key in pool]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    chosen = np.sort(rng.choice(starts[-1], min(SAMPLE, int(starts[-1])), replace=False))
    return np.concatenate(list(_read_frames(pool, starts, chosen)))


def _read_frames(
    pool: Sequence[tuple[EmbeddingStore, str]],
    starts: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
) -> Iterable[npt.NDArray[np.floating]]:
    for (store, key), first, stop in zip(pool, starts[:-1], starts[1:], strict=True):
        begin, end = np.searchsorted(chosen, [first, stop])
        if end > begin:
            yield np.asarray(store[key], np.float32)[chosen[begin:end] - first]
