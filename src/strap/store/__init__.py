"""The embedding store: one vector per frame and camera, in plain `.npy` shards.

    STORE/
      store.json              what the vectors are: encoder, dtype, dimension, cameras, dataset
      shards/NAME.CAMERA.npy  [frames dim], trajectories end to end
      shards/NAME.json        which trajectories lie where, with checksums; written last
      partial/NAME/           a shard that is being written, with a journal of its rows
      manifest.json           written last: which dataset, which ids, versions
      lock                    held for the moment in which writers agree on who does what

Each writer fills shards of its own; what a killed one leaves is taken up by the next. Where two
shards hold the same trajectory, the later name counts. `docs/store.md` has it byte by byte.
"""

from strap.store.layout import (
    Entry,
    Shard,
    StoreConfig,
    StoreSource,
    begin_store,
    create_store,
    slug,
)
from strap.store.partial import Begun, Partial
from strap.store.reading import EmbeddingStore, average, is_store, open_store
from strap.store.writing import Session

__all__ = [
    "Begun",
    "EmbeddingStore",
    "Entry",
    "Partial",
    "Session",
    "Shard",
    "StoreConfig",
    "StoreSource",
    "average",
    "begin_store",
    "create_store",
    "is_store",
    "open_store",
    "slug",
]
