"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import tyro

from strap.datasets import OpenOptions
from strap.segments import Segmentation

Json: TypeAlias = Annotated[bool, tyro.conf.arg(name="json")]
Opening: TypeAlias = Annotated[OpenOptions, tyro.conf.arg(name="")]
Cutting: TypeAlias = Annotated[Segmentation, tyro.conf.arg(name="")]


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; what a terminal would act on is written as \\uXXXX."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    shown = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print("".join(shown))
