"""Collect, record and replay demonstrations of the scripted expert, and survey its success."""
