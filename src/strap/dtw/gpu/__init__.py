"""The matcher on GPUs: the same answers as the definition, from Triton kernels."""
