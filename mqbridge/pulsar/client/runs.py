"""Runs: entries of one consumer that came in one read, each further in the topic than the one before.

The compiled module takes everyday entries (see `native/src/pulsar/delivered.rs`) out of their frames without an object for what
they say. All others are for `wire/frame.py` and `wire/entry.py`, and so is everything where the module is not.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId


class Run(Protocol):
    """Entries that are whole, no chunks, and to be delivered with all of their messages."""

    consumer: int
    epoch: int | None
    """The SUBSCRIBE that they were read for, where the broker says so."""
    entries: list[Entry]
    charges: list[int]
    """Bytes of memory that each takes."""
    messages: int
    """In all of them."""
    first: EntryId
    last: EntryId


def runs_in(frames: list[bytes]) -> Sequence[bytes | Run]:
    """These frames, with runs in place of those that are in one.

    Entries of one consumer stay in order, and so does everything else: only those of several consumers change places.
    """
    if native.compiled is None:
        return frames
    found: Sequence[bytes | Run] = native.compiled.pulsar_runs(frames)
    return found
