"""Looking at a retrieval: a page and its pictures."""

from __future__ import annotations

from strap.report.page import write_report

__all__ = ["write_report"]
