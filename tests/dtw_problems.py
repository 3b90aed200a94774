"""Random problems for the search, drawn so that a failing one shrinks to a small one."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import strap.dtw as dtw
from strap.dtw.cpu.tuning import CpuTuning

DTYPES = (np.float32, np.float64, np.float16)
steps = st.sampled_from(tuple(dtw.STEPS))
metrics = st.sampled_from(dtw.METRICS)
tunings = st.builds(
    CpuTuning,
    use_int16=st.sampled_from([None, True]),
    batch_frames=st.sampled_from([2**15, 1, 20, 90]),
    tile_frames=st.sampled_from([None, 1, 30]),
    group_rows=st.sampled_from([512, 10]),
    round_size=st.sampled_from([16, 1]),
    batched_share=st.sampled_from([0.3, 0.0, 1.0]),
)


@st.composite
def problems(draw, *, dims=(1, 3, 24, 40), trajectories=8, frames=16, query_frames=8):
    """Queries and trajectories: sequences of a few frames, so that there are ties, and some noise.

    Noise, spread and offset shrink away, then frames, then shapes.
    """
    dim, dtype = draw(st.sampled_from(dims)), draw(st.sampled_from(DTYPES))
    elements = st.floats(-4, 4, width=16, allow_subnormal=False)
    palette = draw(hnp.arrays(np.float64, (draw(st.integers(1, 4)), dim), elements=elements))
    noise = draw(st.sampled_from([0.0, 1.0, 1e-6]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)) if noise else 0)
    spread = draw(st.sampled_from([1.0, 1e-3, 50.0]))
    offset = draw(st.sampled_from([0.0, 3.0, 1000.0]))

    def sequence(longest: int):
        numbers = draw(st.lists(st.integers(0, len(palette) - 1), min_size=1, max_size=longest))
        chosen = palette[numbers] + noise * rng.standard_normal((len(numbers), dim))
        drawn = (chosen * spread + offset).astype(dtype)
        drawn[~drawn.any(axis=1), 0] = 1  # cosine isn't defined for 0
        return drawn

    searched = [sequence(frames) for _ in range(draw(st.integers(1, trajectories)))]
    queries = [sequence(query_frames) for _ in range(draw(st.integers(1, 3)))]
    return queries, searched


def same(a: dtw.TopK, b: dtw.TopK) -> bool:
    """The same matches; costs to the last bit."""
    fields = ("trajectory", "start", "stop", "cost")
    return all(np.array_equal(getattr(a, field), getattr(b, field)) for field in fields)


def all_same(found: list[dtw.TopK], expected: list[dtw.TopK]) -> bool:
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def laid_end_to_end(trajectories, ids=None) -> dtw.Block:
    offsets = np.cumsum([0, *map(len, trajectories)])
    return dtw.Block(
        np.concatenate(trajectories), offsets, np.arange(len(trajectories)) if ids is None else ids
    )
