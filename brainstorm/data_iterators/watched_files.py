"""Files that iterators read while other programs might write to them."""

from __future__ import annotations

import os
from collections.abc import Collection

from brainstorm.disk import check_regular
from brainstorm.errors import FileFormatError
from brainstorm.files import PathLike


class WatchedFile:
    """A file to which nothing may happen of what is `refused`."""

    def __init__(
        self, filename: PathLike, refused: Collection[str] = ("changed", "replaced", "removed")
    ) -> None:
        self.filename = os.path.abspath(filename)
        self._refused = refused
        self._version = self._get_version()

    def _get_version(self) -> tuple[int, ...]:
        """Return numbers that differ if the file has changed, beginning with its identity."""
        found = os.stat(self.filename)
        check_regular(self.filename, found)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Check that nothing has happened to the file.

        Raises:
            FileFormatError: It was changed, replaced or removed, if that is refused.
        """
        try:
            version = self._get_version()
            change = "changed" if version[0] == self._version[0] else "replaced"
        except FileNotFoundError:
            version, change = (), "removed"
        if version != self._version and change in self._refused:
            raise FileFormatError(
                f"{self.filename!r} was {change} while an iterator was reading it. Create the "
                f"iterator again, and do not change the file while it is in use."
            )
