"""Sketches: short vectors that stand for frames in a first, cheap lower bound."""
