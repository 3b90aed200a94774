"""The search on GPUs, with Triton kernels."""
