"""Compiles the GPU kernels for a Hopper chip, without one: run by a test, in its own process."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from strap.dtw.gpu import bound_kernels, exact_kernels
from strap.dtw.steps import STEPS, lay_out_steps

TABLES = ("*i64", "*i64", "*i64")


def compile_kernel(kernel, types: tuple[str, ...], **options: object) -> str:
    """Return the kernel's PTX; types are those of its first arguments, in order, and what is
    written in capitals is a constant.
    """
    constants = {name: options.pop(name) for name in kernel.arg_names if name in options}
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def compile_bounds() -> None:
    tiles = "tensordesc<fp16[128,64]>", "tensordesc<fp16[256,64]>", "tensordesc<u16[128,256]>"
    vectors = "*fp32", "*fp32", "*fp32", "*fp32", "*fp64"
    scalars = "fp32", "*fp64", "*fp64", "i32", "i32", "i32"
    for is_rounded, is_cosine in ((False, False), (True, True)):
        ptx = compile_kernel(
            bound_kernels.bound_local_costs,
            (*tiles, *vectors, *scalars),
            DIM=768,
            FRAMES=128,
            ROWS=256,
            DIM_TILE=64,
            IS_ROUNDED=is_rounded,
            IS_COSINE=is_cosine,
            num_warps=8,
            num_stages=3,
        )
        assert "wgmma" in ptx, "the products are to run on tensor cores"
    types = *TABLES, "*fp64", "*fp64", "i32", "i32", "i32"
    sizes = {"PITCH": 128, "PAIRS": 32, "UNROLL": 8}
    compile_kernel(bound_kernels.accumulate_strap, ("*i32", *types), **sizes, num_warps=1)
    for steps in ("fmp", "classic"):
        layout = lay_out_steps(steps)
        compile_kernel(
            bound_kernels.accumulate_others,
            ("*u16", "i32", *types),
            ROWS=64,
            SKEW=layout.skew,
            ROWS_BACK=layout.rows_back,
            num_warps=1,
        )


def compile_alignment() -> None:
    for name, dtype in (("*fp16", tl.float16), ("*fp64", tl.float64)):
        types = *TABLES, name, "i32"
        compile_kernel(exact_kernels.transpose_trajectories, types, TILE=32, DTYPE=dtype)
        ptx = compile_kernel(
            exact_kernels.compute_local_costs,
            (name, "*i64", "*fp64", *TABLES, "*fp64", "i32", "i32"),
            ROWS=4,
            COLUMNS=128,
            ALL_ROWS=64,
            AHEAD=8,
            num_warps=2,
            enable_fp_fusion=False,
        )
        assert "fma.rn.f64" not in ptx, "a fused product would give other bits than the definition"
    for steps in STEPS:
        layout = lay_out_steps(steps)
        types = "*fp64", *TABLES, "*fp64", "*i32", "*i32"
        sizes = {"ROWS": 64, "AHEAD": 8, "SKEW": layout.skew, "ROWS_BACK": layout.rows_back}
        compile_kernel(
            exact_kernels.align_pairs, types, **sizes, num_warps=1, enable_fp_fusion=False
        )


if __name__ == "__main__":
    compile_bounds()
    compile_alignment()
