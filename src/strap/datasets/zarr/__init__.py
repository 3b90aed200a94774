"""Read Zarr replay buffers of diffusion_policy and UMI; only known codecs are allowed."""

from strap.datasets.zarr.reading import ZarrReader, is_zarr, open_zarr

__all__ = ["ZarrReader", "is_zarr", "open_zarr"]
