"""Read RLDS datasets, as TFDS writes them, without TensorFlow."""

from strap.datasets.rlds.reading import RldsReader, is_rlds, open_rlds

__all__ = ["RldsReader", "is_rlds", "open_rlds"]
