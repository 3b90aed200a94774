"""Read the attributes of robomimic and LIBERO files: instruction, frame rate, orientation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from strap.datasets.untrusted import MAX_CHUNK_BYTES, require_at_most
from strap.errors import StrapError, shorten
from strap.types import Orientation

LIBERO_FPS = 20.0
MAX_JSON_BYTES = 1 << 24
"""the longest text that is parsed as JSON; the longest in use (`ep_meta`) has 100 kB"""
SHORT_LIST = 16
"""lists of up to this many texts are read from files of any size"""
LANGUAGE_ATTRIBUTES = ("language_instruction", "lang", "instruction")
Dialect = Literal["robomimic", "libero"]


@dataclass(frozen=True)
class Attributes:
    """The attributes of one group by name: texts, numbers, arrays of numbers, lists of texts.

    Attributes of other types (references, tables, empty ones) are left out.
    """

    file: Path
    place: str
    values: dict[str, Any]

    def number(self, name: str) -> float | None:
        """Return an attribute as a finite number; None if it does not exist."""
        return self.as_number(name, self.values.get(name))

    def as_number(self, name: str, value: Any) -> float | None:
        """Return a value as a finite number, or None; raise if it is something else."""
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        if value is None or (isinstance(value, int | float) and math.isfinite(value)):
            return value
        raise StrapError(f"{self._where(name)} is {_shown(value)}, not a number: correct it")

    def text(self, name: str, value: Any) -> str:
        """Return a value as one text; None becomes "", a list of parts (LIBERO) is joined."""
        if isinstance(self.values.get(name), list) and len(value) > 1:
            raise StrapError(
                f"{self._where(name)} is a list of {len(value)} texts: write the instruction as "
                "one text"
            )
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = "".join(value)
        if isinstance(value, str):
            text = value.strip()
            return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
        if value is None:
            return ""
        raise StrapError(
            f"{self._where(name)} is {_shown(value)}, not a text: write the instruction as one text"
        )

    def json(self, name: str) -> dict[str, Any]:
        """Return an attribute as a JSON object; an empty one if it is missing or not an object."""
        value = self.values.get(name)
        if not isinstance(value, str):
            return {}
        require_at_most(len(value), MAX_JSON_BYTES, f"characters of JSON in '{name}'", self.file)
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}

    def _where(self, name: str) -> str:
        return f"'{self.file}', {self.place}: the attribute '{name}'"


def read_attributes(node: h5py.Group, place: str, file: Path, size: int) -> Attributes:
    """Return the attributes of a group in a file of `size` bytes.

    In a damaged file many attributes can point to one long text. In a sound file each attribute
    has its own text, so all texts together are not longer than the file.
    """
    values: dict[str, Any] = {}
    length = 0
    for name in node.attrs:
        value = _read(node, name, place, file, size)
        if value is None:
            continue
        values[_clean(name)] = value
        length += _text_length(value)
        if length > size:
            raise StrapError(
                f"'{file}', {place}: the texts of its attributes are longer than the whole file "
                f"({size:,} bytes); the file is damaged: copy it again or leave it out"
            )
    return Attributes(file, place, values)


def _read(node: h5py.Group, name: str, place: str, file: Path, size: int) -> Any:
    attribute = node.attrs.get_id(name)
    if attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return None
    count = math.prod(attribute.shape)
    if not attribute.dtype.hasobject and count * attribute.dtype.itemsize > size:
        raise StrapError(
            f"'{file}', {place}: the attribute '{_clean(name)}' declares {attribute.shape} values, "
            f"more than a file of {size:,} bytes can hold; the file is damaged: copy it again"
        )
    if attribute.dtype.hasobject and count > SHORT_LIST and count * size > MAX_CHUNK_BYTES:
        return None
    return _plain(node.attrs[name])


def _plain(value: Any) -> Any:
    """Return a value as text, number, array of numbers or list of texts; None for other types."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "SO":
        texts = [_plain(item) for item in value.flat]
        return texts if all(isinstance(text, str) for text in texts) else None
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else None
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else None
    return None


def _clean(text: str) -> str:
    """Return the text with invalid UTF-8 bytes replaced; h5py returns them as surrogates."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text_length(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(len, value))
    return len(value) if isinstance(value, str) else 0


def _shown(value: Any) -> str:
    return shorten(" ".join(repr(value).split()))


def find_dialect(data: Attributes) -> Dialect:
    """Return which program's conventions a file follows, by the attributes of `/data`."""
    is_libero = "bddl_file_name" in data.values or "problem_info" in data.values
    return "libero" if is_libero else "robomimic"


def find_instruction(data: Attributes, demo: Attributes) -> str:
    """Return the instruction, from the first non-empty one of the known attributes."""
    env_args, problem = data.json("env_args"), data.json("problem_info")
    if not problem and data.values.get("problem_info", "{}") != "{}":
        raise StrapError(
            f"'{data.file}': the attribute 'problem_info' of '/data' is "
            f"{_shown(data.values['problem_info'])}, not the JSON that LIBERO writes; the file is "
            "damaged: copy it again or correct it"
        )
    places = [
        (demo, "ep_meta", demo.json("ep_meta").get("lang")),
        *((demo, key, demo.values.get(key)) for key in LANGUAGE_ATTRIBUTES),
        (data, "problem_info", problem.get("language_instruction")),
        *((data, key, data.values.get(key)) for key in LANGUAGE_ATTRIBUTES),
        *(
            (data, "env_args", env_args.get(key))
            for key in ("lang", "env_lang", LANGUAGE_ATTRIBUTES[0])
        ),
    ]
    own = demo.values.get(LANGUAGE_ATTRIBUTES[0])
    if isinstance(own, str) and not own and not places[0][2]:
        return ""  # an explicitly empty instruction, as `write_robomimic` writes it
    texts = (attributes.text(name, value) for attributes, name, value in places)
    from_name = instruction_from_name(data.file) if find_dialect(data) == "libero" else ""
    return next(filter(None, texts), from_name)


def instruction_from_name(file: Path) -> str:
    """Return the instruction in a LIBERO file name.

    `KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5` becomes `turn on the stove`.
    """
    words = file.stem.removesuffix("_demo").split("_")
    return " ".join(w for w in words if not w.isupper() or (w.isalpha() and len(w) == 1))


def find_frame_rate(data: Attributes) -> float | None:
    """Return the frames per second in the attributes, else the default of the dialect."""
    control = data.json("env_args").get("env_kwargs")
    control = control.get("control_freq") if isinstance(control, dict) else None
    rate = data.number("fps") if "fps" in data.values else data.as_number("env_args", control)
    if rate is None:
        return LIBERO_FPS if find_dialect(data) == "libero" else None
    if rate <= 0:
        raise StrapError(
            f"'{data.file}': the frame rate in the attributes of '/data' (fps, or control_freq in "
            f"env_args) is {rate:g}; it must be above 0: correct it"
        )
    return float(rate)


def find_orientation(data: Attributes) -> Orientation:
    """Return the image orientation in the attributes, else that of the dialect."""
    stored = data.values.get("image_orientation")
    if stored is not None:
        if not isinstance(stored, str) or stored not in ("upright", "flipped"):
            raise StrapError(
                f"'{data.file}': the attribute 'image_orientation' of '/data' is {_shown(stored)}; "
                "it must be 'upright' or 'flipped': correct it"
            )
        return "upright" if stored == "upright" else "flipped"
    if find_dialect(data) == "robomimic":
        return "upright"
    convention = data.values.get("macros_image_convention", "opengl")
    if not isinstance(convention, str) or convention not in ("opengl", "opencv"):
        raise StrapError(
            f"'{data.file}': the attribute 'macros_image_convention' of '/data' is "
            f"{_shown(convention)}; it must be 'opengl' or 'opencv': correct it, or give the "
            "orientation of the images when you open the file (orientation=, --orientation)"
        )
    return "flipped" if convention == "opengl" else "upright"
