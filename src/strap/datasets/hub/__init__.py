"""Datasets on the Hugging Face hub, by the names of their repositories.

A name such as `lerobot/pusht` is resolved to a commit of that repository. The commit has a folder
in the hub's cache, with its `meta/` and the tables and videos that have been fetched so far.
"""

from strap.datasets.hub.names import HubName, find_hub_name
from strap.datasets.hub.snapshots import Snapshot, fetch_snapshot, find_snapshot

__all__ = ["HubName", "Snapshot", "fetch_snapshot", "find_hub_name", "find_snapshot"]
