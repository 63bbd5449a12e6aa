"""Runs of entries: ordinary entries of one consumer that arrived in one read of the socket, in ascending order.

The compiled module parses ordinary entries (see `native/src/pulsar/delivered.rs`) without an object per frame. `wire/frame.py`
and `wire/entry.py` parse all other entries, and all entries if the compiled module is not installed.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId


class EntryRun(Protocol):
    """Entries without chunks, all of whose messages are to be delivered."""

    consumer: int
    """Consumer id at the connection."""
    epoch: int | None
    """Epoch of the SUBSCRIBE for which the broker read the entries; None if the broker does not send it."""
    entries: list[Entry]
    charges: list[int]
    """Memory of each entry, in bytes."""
    messages: int
    """Number of messages in all entries."""
    first: EntryId
    last: EntryId


def group_runs(frames: list[bytes]) -> Sequence[bytes | EntryRun]:
    """Return the frames with ordinary entries grouped into runs.

    Entries of one consumer keep their order, and so do other frames; only entries of different consumers may be reordered.
    """
    if native.compiled is None:
        return frames
    runs: Sequence[bytes | EntryRun] = native.compiled.pulsar_runs(frames)
    return runs
