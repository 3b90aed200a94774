"""The search on the CPU."""
