"""Bound consumption: a group whose members together start at exact offsets, under a session key.

The Master hands nothing out before `source_count` members have come; all name the same key, count and choice. A partition goes to
the member that listed it, with its offset; when several did, the largest offset wins with `select_big`, else the smallest. What
nobody listed is spread, and starts where the group stands.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.tubemq.wire.text import Key


class Bound(NamedTuple):
    """What one member of a bound group brings. `offsets` are where it wants partitions to start."""

    session_key: str
    source_count: int
    offsets: Mapping[Key, int]
    select_big: bool = True
