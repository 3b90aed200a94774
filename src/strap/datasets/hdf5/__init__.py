"""robomimic and LIBERO HDF5: read lazily, from the file itself and no other."""

from strap.datasets.hdf5.reading import SUFFIXES, Hdf5Reader, is_hdf5, open_hdf5

__all__ = ["SUFFIXES", "Hdf5Reader", "is_hdf5", "open_hdf5"]
