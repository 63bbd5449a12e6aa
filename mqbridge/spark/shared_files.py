"""Reads small files in folders that others can write, such as a checkpoint: never more than expected."""

from pyarrow import fs

MAX_LEASE_BYTES = 64 << 10
"""Limit of a lease; one has about 100 bytes."""
MAX_RECORD_BYTES = 64 << 20
"""Limit of a file with positions or routes: a million partitions take less."""


def read_bounded(file_system: fs.FileSystem, path: str, max_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError, and ValueError for a larger file, which mqbridge has not written."""
    with file_system.open_input_stream(path) as file:
        content = bytes(file.read(max_bytes + 1))
    if len(content) > max_bytes:
        raise ValueError(f"the file has more than {max_bytes} bytes, so mqbridge has not written it")
    return content
