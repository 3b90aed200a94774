"""Exact top-k over embedding stores: feeds their shards to the matcher and names what it finds."""
