"""Small files in the checkpoint folder of a query, on any file system that pyarrow supports: local, hdfs, s3, gs and others.

Only the local file system replaces a file atomically. So each write creates a file with the next number: it is complete as soon
as it has its final name. Then it removes the files with lower numbers. Readers take the file with the highest number.
"""

import contextlib
import logging
import posixpath
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyarrow import ArrowException, fs

from mqbridge.spark.shared_files import MAX_RECORD_BYTES, read_bounded
from mqbridge.wire.limits import is_number

log = logging.getLogger(__name__)

FOLDER = "mqbridge"
"""The sink's folder inside Spark's checkpoint folder. Spark ignores files that it does not know."""
_PYARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
"""URL schemes of Hadoop, with the name that pyarrow uses."""


class CheckpointFiles:
    """The sink's folder, created by the first write. Every method may raise OSError, and `read` and `read_spark_file` ValueError.

    The file NAME is stored as `NAME.1`, `NAME.2` and so on. Names must not contain slashes. `path` is the folder's path in the
    file system.
    """

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self._file_system, self.path = file_system, path

    def read(self, name: str) -> bytes | None:
        """Return the content that was written last; None if the file does not exist."""
        numbers = self._numbers(name)
        if not numbers:
            return None
        return read_bounded(self._file_system, self._numbered_path(name, numbers[-1]), MAX_RECORD_BYTES)

    def read_spark_file(self, name: str) -> bytes | None:
        """Return the content of one of Spark's own files, by its path in the checkpoint folder; None if it does not exist."""
        try:
            return read_bounded(self._file_system, posixpath.join(posixpath.dirname(self.path), name), MAX_RECORD_BYTES)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace the content of a file atomically."""
        self._file_system.create_dir(self.path, recursive=True)
        numbers = self._numbers(name)
        draft = posixpath.join(self.path, f".{name}.{uuid4().hex}")
        with self._file_system.open_output_stream(draft) as stream:
            stream.write(data)
        self._file_system.move(draft, self._numbered_path(name, numbers[-1] + 1 if numbers else 1))
        for number in numbers:
            with contextlib.suppress(OSError):  # the next write deletes the file
                self._file_system.delete_file(self._numbered_path(name, number))

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with the prefix, each once."""
        file_names = (posixpath.basename(info.path) for info in self._file_infos())
        return sorted({name.rpartition(".")[0] for name in file_names if name.startswith(prefix)})

    def remove(self, names: Collection[str]) -> None:
        """Remove the files with these names. Names of missing files are ignored."""
        for info in self._file_infos():
            if posixpath.basename(info.path).rpartition(".")[0] in names:
                self._file_system.delete_file(info.path)

    def _numbers(self, name: str) -> list[int]:
        """Return the numbers under which the file is stored, the newest last."""
        file_names = (posixpath.basename(info.path).rpartition(".") for info in self._file_infos())
        return sorted(int(number) for stem, _, number in file_names if stem == name and is_number(number))

    def _file_infos(self) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._file_system.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return infos

    def _numbered_path(self, name: str, number: int) -> str:
        return posixpath.join(self.path, f"{name}.{number}")


def open_checkpoint_files(checkpoint: str) -> CheckpointFiles | None:
    """Return the sink's folder in a checkpoint, which is a path or URL. Warn and return None if pyarrow cannot access it."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        path = unquote(parts.path) if parts.scheme else checkpoint
        return CheckpointFiles(fs.LocalFileSystem(), str(Path(path).absolute() / FOLDER))
    scheme = _PYARROW_SCHEMES.get(parts.scheme, parts.scheme)
    try:
        file_system, path = fs.FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    except (ArrowException, OSError) as error:
        log.warning(
            "the sink stores no progress in %s, because pyarrow cannot access it: after a restart the sink searches its targets "
            "for messages that are stored already, which takes longer: %s",
            checkpoint,
            error,
        )
        return None
    return CheckpointFiles(file_system, posixpath.join(path, FOLDER))
