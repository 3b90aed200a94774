"""The embedding store: one vector per frame and camera, in plain `.npy` shards.

    STORE/
      store.json              what the vectors are: encoder, dtype, dimension, cameras, dataset
      shards/NAME.CAMERA.npy  [frames dim], concatenated trajectories
      shards/NAME.json        its trajectories, their rows and checksums; written last
      partial/NAME/           a shard that is being written, with a journal of its rows
      manifest.json           dataset, ids, versions; written when the store is complete
      lock                    held briefly while a writer claims trajectories

Each writer fills its own shards. The next writer continues the unfinished shard of a killed one. If
two shards have the same trajectory, the later shard counts. `docs/store.md` specifies every byte.
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
from strap.store.partial import PartialShard, PendingTrajectory
from strap.store.reading import EmbeddingStore, average, is_store, open_store
from strap.store.writing import Session

__all__ = [
    "EmbeddingStore",
    "Entry",
    "PartialShard",
    "PendingTrajectory",
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
