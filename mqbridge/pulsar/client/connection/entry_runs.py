"""Runs of entries: ordinary entries of one consumer that arrived in one read of the socket, in ascending order.

An entry is ordinary if it is not compressed, not encrypted and not a chunk, its checksum is valid, and none of its messages is
already acknowledged. The compiled module parses ordinary entries without an object for each frame, and builds the runs.
`wire/frame.py` and `wire/entry.py` parse all other entries, and all entries if the compiled module is not installed.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId


class EntryRun(Protocol):
    """Several ordinary entries of one consumer."""

    consumer: int
    """Id of the consumer in its connection."""
    epoch: int | None
    """Number of the consumer's SUBSCRIBE for which the broker read the entries; None if the broker does not send it."""
    entries: list[Entry]
    charges: list[int]
    """Bytes of memory of each entry, for `FlowPermits.received`."""
    messages: int
    """Number of messages in all entries."""
    first: EntryId
    last: EntryId


def group_runs(frames: list[bytes]) -> Sequence[bytes | EntryRun]:
    """Group the frames that contain ordinary entries into runs; return the runs, and all other frames as they are.

    The order stays as received, except between entries of different consumers. Without the compiled module there are no runs.
    """
    if native.compiled is None:
        return frames
    runs: Sequence[bytes | EntryRun] = native.compiled.pulsar_runs(frames)
    return runs
