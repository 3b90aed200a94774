"""Looking at a retrieval: a page, its pictures, and a score by what the robot was doing."""

from __future__ import annotations

from strap.report.page import write_report
from strap.report.skills import Precision, precision, read_labels, write_labels

__all__ = ["Precision", "precision", "read_labels", "write_labels", "write_report"]
