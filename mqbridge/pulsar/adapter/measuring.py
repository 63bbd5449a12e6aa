"""Ranges of a partition as stretches: entries of ledgers.

The entries of a ledger are numbered from 0, and only the administrators' interface says how many a closed ledger has.
"""

from collections.abc import Mapping

from mqbridge.adapter.topics import Stretch
from mqbridge.message import Position

ENTRY = 1
"""The index of an entry's number in a position; that of its ledger comes before, that of a message in it behind."""


def stretches_between(begin: Position, end: Position, entries: Mapping[int, int] | None) -> list[Stretch]:
    """From `begin` up to `end`; `entries` counts those of the ledgers that are still there, None where nobody tells.

    What begins in a ledger that is not counted is one unit: a reader there says whether anything was lost.
    """
    if end <= begin:
        return []
    last = Stretch((end[0], 0, 0), end[1] + (end[2] > 0), part=ENTRY)
    if begin[0] == end[0]:
        return [Stretch(begin, last.count - begin[1], part=ENTRY)]
    found: list[Stretch] = []
    if entries is None or (begin[0] >= 0 and begin[0] not in entries):
        found.append(Stretch(begin, 1))
    elif begin[0] >= 0:
        found.append(Stretch(begin, entries[begin[0]] - begin[1], part=ENTRY))
    between = sorted(ledger for ledger in entries or () if begin[0] < ledger < end[0])
    found += [Stretch((ledger, 0, 0), (entries or {})[ledger], part=ENTRY) for ledger in between]
    return [stretch for stretch in (*found, last) if stretch.count > 0]
