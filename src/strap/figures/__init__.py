"""Figures, animations and recordings of a retrieval or a segmentation."""
