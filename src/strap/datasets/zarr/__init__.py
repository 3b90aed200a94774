"""Zarr replay buffers as diffusion_policy and UMI write them: read, no codec but known ones run."""

from strap.datasets.zarr.reading import ZarrReader, is_zarr, open_zarr

__all__ = ["ZarrReader", "is_zarr", "open_zarr"]
