"""Figures of a retrieval and of a segmentation; needs matplotlib."""
