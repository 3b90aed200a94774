"""Compiles the GPU kernels for a Hopper chip, without one: run by a test, in its own process."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from strap.dtw.gpu import kernels

CELLS = {
    "pitch": "i32",
    "offsets": "*i64",
    "tops": "*i64",
    "counts": "*i64",
    "step": "*fp64",
    "lows": "*fp64",
    "stride": "i32",
    "queries": "i32",
    "top_row": "i32",
}
PAIRS = {
    "columns": "*fp16",
    "lengths": "*i64",
    "queries": "*fp64",
    "tops": "*i64",
    "counts": "*i64",
    "places": "*i64",
    "costs": "*fp64",
    "dim": "i32",
    "pitch": "i32",
    "cost_out": "*fp64",
    "start_out": "*i32",
    "stop_out": "*i32",
}
TILES = {
    "frames": "tensordesc<fp16[128,64]>",
    "rows": "tensordesc<fp16[256,64]>",
    "out": "tensordesc<u16[128,256]>",
    "alpha": "*fp32",
    "beta": "*fp32",
    "row_slack": "*fp32",
    "frame_slack": "*fp32",
    "squares": "*fp64",
    "reach": "fp32",
    "unit": "*fp64",
    "step": "*fp64",
    "gain": "fp32",
    "tiles": "i32",
    "row_tiles": "i32",
    "total": "i32",
}


def compiled(kernel, types, constants, **options) -> str:
    """The kernel's PTX."""
    types = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    source = ASTSource(kernel, types, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


ROWS = {
    "frames": "*fp16",
    "mean": "*fp64",
    "shift": "*fp64",
    "constants": "*fp64",
    "values": "*fp16",
    "alpha": "*fp32",
    "slack": "*fp32",
    "squares": "*fp64",
    "first": "i32",
    "used": "i32",
    "dim": "i32",
    "width": "i32",
}


def main() -> None:
    for dtype in ("*fp16", "*fp32", "*fp64"):
        compiled(kernels.rows, {**ROWS, "frames": dtype}, {"BLOCK": 1024}, num_warps=4)
    strap = {"PITCH": 128, "PAIRS": 32, "UNROLL": 8}
    compiled(kernels.least_strap, {**CELLS, "cells": "*i32"}, strap, num_warps=1)
    for steps in (1, 2):
        others = {"ROWS": 64, "STEPS": steps}
        compiled(kernels.least_costs, {**CELLS, "cells": "*u16"}, others, num_warps=1)
    paths = {"ROWS": 64, "STEPS": 0, "AHEAD": 8}
    compiled(kernels.alignments, PAIRS, paths, num_warps=1, enable_fp_fusion=False)
    exact = {"ROWS": 4, "COLUMNS": 128, "ALL_ROWS": 64, "AHEAD": 8}
    ptx = compiled(kernels.exact_costs, PAIRS, exact, num_warps=1, enable_fp_fusion=False)
    assert "fma.rn.f64" not in ptx, "a fused product would give other bits than the definition"
    tile = {"DIM": 768, "FRAMES": 128, "ROWS": 256, "BLOCK": 64, "ROUNDED": False, "COSINE": False}
    ptx = compiled(kernels.cells, TILES, tile, num_warps=8, num_stages=3)
    assert "wgmma" in ptx, "the products are to run on tensor cores"


if __name__ == "__main__":
    main()
