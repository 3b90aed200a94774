"""A file on its way to the HDF5 library, which trusts some of what it reads too much.

Texts of any length lie in collections ("global heaps") of objects, each with its length. The
library steps from object to object; one of length 0 in the wrong place, and it steps for ever.
Here every collection is looked at when it is first read.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

from strap.errors import StrapError

SIGNATURE = b"GCOL\x01\0\0\0"
"""how a collection begins: its name and version 1"""
HEADER = struct.Struct("<8sQ")
"""of a collection: signature, length with this header"""
OBJECT = struct.Struct("<HHIQ")
"""of an object: number (0: free space), references, nothing, length"""
SEARCHED_BYTES = 1 << 20
"""collections are looked for in reads up to this length; the library reads their beginning apart"""


class GuardedFile(io.RawIOBase):
    """The bytes of a file, for `h5py.File`; raises where a damaged collection is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = 0
        self._sound: set[int] = set()

    def readable(self) -> bool:
        """Return True: it is there to be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the library reads here and there."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, counted from the beginning, from here or from the end."""
        end = os.fstat(self._descriptor).st_size
        self._position = offset + (0, self._position, end)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with zeros beyond the file's end, as the library's own reader does."""
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < len(view):
            read = os.preadv(self._descriptor, [view[filled:]], self._position + filled)
            if not read:
                view[filled:] = bytes(len(view) - filled)
                break
            filled += read
        if len(view) <= SEARCHED_BYTES:
            self._look_through(view)
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _look_through(self, view: memoryview) -> None:
        """Check the collections that begin in these bytes, or just before them."""
        before = min(self._position, len(SIGNATURE) - 1)
        edge = os.pread(self._descriptor, before, self._position - before)
        data = edge + view
        place = data.find(SIGNATURE)
        while place >= 0:
            self._require_sound(self._position - before + place)
            place = data.find(SIGNATURE, place + 1)

    def _require_sound(self, start: int) -> None:
        if start in self._sound:
            return
        _, length = HEADER.unpack(os.pread(self._descriptor, HEADER.size, start).ljust(HEADER.size))
        end = os.fstat(self._descriptor).st_size
        data = os.pread(self._descriptor, min(length, end - start), start)
        place = HEADER.size
        while length - place >= OBJECT.size:
            number, _, _, size = OBJECT.unpack(data[place : place + OBJECT.size].ljust(OBJECT.size))
            step = size if number == 0 else OBJECT.size + (size + 7) // 8 * 8
            if step < OBJECT.size or place + step > len(data):
                raise StrapError(
                    f"'{self._path}' is damaged at byte {start + place:,}, among its texts (HDF5 "
                    "global heap): copy it again or leave it out"
                )
            place += step
        self._sound.add(start)
