"""Runs: entries of one consumer that arrived in one read, in ascending order.

The compiled module parses ordinary entries (see `native/src/pulsar/delivered.rs`) without an object per frame. All others, and
all entries without the compiled module, are parsed by `wire/frame.py` and `wire/entry.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId


class EntryRun(Protocol):
    """Whole entries, without chunks, of which all messages are to be delivered."""

    consumer: int
    epoch: int | None
    """Epoch of the SUBSCRIBE that they were read for; None if the broker does not send it."""
    entries: list[Entry]
    charges: list[int]
    """Memory of each entry, in bytes."""
    messages: int
    """Number of messages in all entries."""
    first: EntryId
    last: EntryId


def group_runs(frames: list[bytes]) -> Sequence[bytes | EntryRun]:
    """Return the frames with ordinary entries grouped into runs.

    Entries of one consumer stay in order, and so do other frames; only entries of different consumers may be reordered.
    """
    if native.compiled is None:
        return frames
    runs: Sequence[bytes | EntryRun] = native.compiled.pulsar_runs(frames)
    return runs
