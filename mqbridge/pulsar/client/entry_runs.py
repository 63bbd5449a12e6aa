"""Runs of entries: ordinary entries of one consumer that arrived in one read of the socket, in ascending order.

The compiled module builds the runs. It parses ordinary entries (`native/src/pulsar/delivered.rs` defines them) without an object
for each frame. `wire/frame.py` and `wire/entry.py` parse all other entries, and all entries if the compiled module is not
installed.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId


class EntryRun(Protocol):
    """Several entries of one consumer. None is a chunk, and none has messages that are already acknowledged at the broker."""

    consumer: int
    """Id of the consumer, by which the connection finds it."""
    epoch: int | None
    """Epoch of the SUBSCRIBE for which the broker read the entries; None if the broker does not send it."""
    entries: list[Entry]
    charges: list[int]
    """Bytes of memory of each entry, to charge to the permits."""
    messages: int
    """Number of messages in all entries."""
    first: EntryId
    last: EntryId


def group_runs(frames: list[bytes]) -> Sequence[bytes | EntryRun]:
    """Group the frames that contain ordinary entries into runs; return runs and all other frames, in the order received.

    Only entries of different consumers may change their order.
    """
    if native.compiled is None:
        return frames
    runs: Sequence[bytes | EntryRun] = native.compiled.pulsar_runs(frames)
    return runs
