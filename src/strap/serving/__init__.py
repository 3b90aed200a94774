"""A policy behind a websocket, as openpi's clients speak it: `strap serve`."""
