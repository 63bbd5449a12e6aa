"""Small files in the checkpoint folder of a query, wherever that is: local, hdfs, s3, gs, and what else pyarrow reaches.

No file system but the local one replaces a file in one step. So each write makes a file with the next number, complete from the
moment it has its name, and then removes those before: a reader takes the one with the highest number.
"""

import contextlib
import logging
import posixpath
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyarrow import ArrowException, fs

log = logging.getLogger(__name__)

FOLDER = "mqbridge"
"""In Spark's checkpoint; Spark leaves alone what it does not know."""
_SAME = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of a scheme, and pyarrow's."""


class Folder:
    """One folder; it is made when something is written. Names are plain words. Every method may raise OSError."""

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files, self.path = files, path

    def read(self, name: str) -> bytes | None:
        """What was written last; None where nothing was."""
        numbers = self._numbers(name)
        if not numbers:
            return None
        with self._files.open_input_stream(self._place(name, numbers[-1])) as stream:
            return bytes(stream.read())

    def read_beside(self, name: str) -> bytes | None:
        """A file of Spark's, in the checkpoint itself; None where there is none."""
        try:
            with self._files.open_input_stream(posixpath.join(posixpath.dirname(self.path), name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace it in one step."""
        self._files.create_dir(self.path, recursive=True)
        numbers = self._numbers(name)
        draft = posixpath.join(self.path, f".{name}.{uuid4().hex}")
        with self._files.open_output_stream(draft) as stream:
            stream.write(data)
        self._files.move(draft, self._place(name, numbers[-1] + 1 if numbers else 1))
        for number in numbers:
            with contextlib.suppress(OSError):  # the next write tries again
                self._files.delete_file(self._place(name, number))

    def names(self, prefix: str) -> list[str]:
        """All that were written whose names begin so, each once."""
        found = (posixpath.basename(info.path) for info in self._infos())
        return sorted({name.rpartition(".")[0] for name in found if name.startswith(prefix)})

    def remove(self, names: Collection[str]) -> None:
        """Remove those of these that are there."""
        for info in self._infos():
            if posixpath.basename(info.path).rpartition(".")[0] in names:
                self._files.delete_file(info.path)

    def _numbers(self, name: str) -> list[int]:
        """The numbers of its files, the newest last."""
        found = (posixpath.basename(info.path).rpartition(".") for info in self._infos())
        return sorted(int(number) for stem, _, number in found if stem == name and number.isdigit())

    def _infos(self) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._files.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return found

    def _place(self, name: str, number: int) -> str:
        return posixpath.join(self.path, f"{name}.{number}")


def open_folder(checkpoint: str) -> Folder | None:
    """The sink's folder in a checkpoint, which is a path or a URL; None, with a warning, where it cannot be reached from here."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else checkpoint
        return Folder(fs.LocalFileSystem(), str(Path(path).absolute() / FOLDER))
    scheme = _SAME.get(parts.scheme, parts.scheme)
    try:
        files, path = fs.FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    except (ArrowException, OSError) as error:
        log.warning(
            "the sink keeps no progress in %s, which pyarrow does not reach: after a restart it reads back from its targets what "
            "they hold, which takes longer: %s",
            checkpoint,
            error,
        )
        return None
    return Folder(files, posixpath.join(path, FOLDER))
