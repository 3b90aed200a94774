"""Settings of the CPU backend that affect its speed, never the result."""

from __future__ import annotations

from dataclasses import dataclass

from strap.dtw.cpu.int16.gemm import is_fast

INT16_PRODUCTS = 1e8  # multiplications in a batch above which int16 bounds are faster


@dataclass(frozen=True)
class CpuTuning:
    """The settings of one search; all give the same result."""

    use_int16: bool | None = None
    """bound all pairs by products of int16 instead of float32 numbers; None: if that is faster"""
    batch_frames: int = 2**15
    """frames that are read and bounded together"""
    tile_frames: int | None = None
    """frames bounded by one thread in one call; None: as many as fit in a core's cache"""
    group_rows: int = 512
    """query frames in one product"""
    round_size: int = 16
    """candidates of each query that are aligned before its threshold is updated"""
    batched_share: float = 0.3
    """share of pairs left by sketches above which their frames are bounded, in batches"""

    def bounds_by_int16(self, n_rows: int, n_frames: int, dim: int) -> bool:
        """Return whether to bound `n_rows` query frames and `n_frames` frames by int16 products."""
        if self.use_int16 is not None:
            return self.use_int16
        return n_rows * n_frames * dim > INT16_PRODUCTS and is_fast()
