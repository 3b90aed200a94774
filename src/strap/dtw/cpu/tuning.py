"""Choices that decide how long a search on the CPU takes, and never what it finds."""

from __future__ import annotations

from dataclasses import dataclass

from strap.dtw.cpu.int16.gemm import is_fast

INT16_PRODUCTS = 1e8  # of a batch, from which on it pays to bound it by integers


@dataclass(frozen=True)
class CpuTuning:
    """The choices of one search; all give the same answer."""

    use_int16: bool | None = None
    """bound all pairs by products of 16-bit integers, not float32; None: where that is faster"""
    batch_frames: int = 2**15
    """frames whose bounds are computed together: what a search keeps open at a time"""
    tile_frames: int | None = None
    """frames bounded by one thread in one call; None: what stays in a core's cache"""
    group_rows: int = 512
    """query frames in one product"""
    round_size: int = 16
    """trajectories that each query evaluates before its threshold is set anew"""
    batched_share: float = 0.3
    """share of pairs that sketches leave, above which their bounds are computed in batches"""

    def bounds_by_int16(self, n_rows: int, n_frames: int, dim: int) -> bool:
        """Return whether all pairs of so many query frames and frames are bounded by integers."""
        if self.use_int16 is not None:
            return self.use_int16
        return n_rows * n_frames * dim > INT16_PRODUCTS and is_fast()
