"""Read robomimic and LIBERO HDF5 lazily; links to other files are never followed."""

from strap.datasets.hdf5.reading import SUFFIXES, Hdf5Reader, is_hdf5, open_hdf5

__all__ = ["SUFFIXES", "Hdf5Reader", "is_hdf5", "open_hdf5"]
