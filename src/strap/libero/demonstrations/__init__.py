"""Demonstrations by the scripted expert: collected, recorded, replayed and surveyed."""
