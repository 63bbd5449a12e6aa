"""Ids for the entries of a non-persistent topic, made by the consumer in the order of arrival.

A broker sends all these entries with the same id. Everything behind the consumer takes ids for unique and ascending: partial
acknowledgements, the positions of messages, their origins, and the sequence ids by which a target deduplicates. So an id is made
from the time when the consumer was created, and counted up: the next process continues with later ids.
"""

import time

from mqbridge.pulsar.wire.ids import EntryId

NS_PER_ID = 4_000
"""Nanoseconds per id. A consumer that receives fewer than 250,000 entries a second never reaches the ids of a later one."""
ENTRY_BITS = 21
"""Number of the low bits that are the entry. The rest, 28 bits until the year 2041, is the ledger; see `mapping/sequences.py`."""


class ArrivalIds:
    """The ids of one consumer's entries."""

    def __init__(self) -> None:
        self._next = time.time_ns() // NS_PER_ID

    def take(self) -> EntryId:
        """Return the id of the next entry."""
        number = self._next
        self._next += 1
        return number >> ENTRY_BITS, number & (1 << ENTRY_BITS) - 1
