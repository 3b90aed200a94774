"""A file object that checks bytes before the HDF5 library reads them.

HDF5 stores variable-length texts in collections ("global heaps") of objects, each with its length.
The library steps from object to object. If a damaged object has length 0, the library loops
forever. So every collection is checked when it is first read.
"""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Any

from strap.errors import StrapError

SIGNATURE = b"GCOL\x01\0\0\0"
"""the first bytes of a collection: its name and version 1"""
HEADER = struct.Struct("<8sQ")
"""the header of a collection: signature, length with this header"""
OBJECT = struct.Struct("<HHIQ")
"""the header of an object: number (0: free space), references, reserved, length"""
MAX_SEARCHED_BYTES = 1 << 20
"""reads up to this length are searched for collections: the library reads their headers in short
reads"""


class GuardedFile(io.RawIOBase):
    """A file for `h5py.File` that raises if a damaged collection is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = 0
        self._sound: set[int] = set()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the start, from the current position or from the end."""
        end = os.fstat(self._descriptor).st_size
        self._position = offset + (0, self._position, end)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; beyond the end of the file with zeros, as the library's reader does."""
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < len(view):
            read = os.preadv(self._descriptor, [view[filled:]], self._position + filled)
            if not read:
                view[filled:] = bytes(len(view) - filled)
                break
            filled += read
        if len(view) <= MAX_SEARCHED_BYTES:
            self._check_collections(view)
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _check_collections(self, view: memoryview) -> None:
        """Check the collections whose signature ends in these bytes, at the current position."""
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
                    f"'{self._path}' is damaged at byte {start + place:,}, where texts are stored "
                    "(HDF5 global heap): copy it again or leave it out"
                )
            place += step
        self._sound.add(start)
