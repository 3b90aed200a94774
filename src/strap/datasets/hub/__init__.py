"""Datasets of the Hugging Face hub, by the names of their repositories.

A name such as `lerobot/pusht` becomes a commit of that repository, and the commit a folder of the
hub's cache that holds its `meta/`, and of its tables and videos those that were fetched so far.
"""

from strap.datasets.hub.names import HubName, find_hub_name
from strap.datasets.hub.snapshots import Snapshot, fetch_snapshot, find_snapshot

__all__ = ["HubName", "Snapshot", "fetch_snapshot", "find_hub_name", "find_snapshot"]
