"""Serve a policy over openpi's websocket protocol: `strap serve`."""
