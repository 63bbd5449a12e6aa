"""Bound consumption: a group whose members together start at exact offsets, under a session key.

The Master assigns nothing before `source_count` members have joined; all send the same key, count and `select_big`. A partition
goes to the member that listed it, at the listed offset; if several listed it, the largest offset wins with `select_big`, else the
smallest. Unlisted partitions are spread over the members and start at the group's position.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.tubemq.wire.string_formats import PartitionKey


class BoundSubscription(NamedTuple):
    """The parameters of one member of a bound group. `offsets` are where it wants partitions to start."""

    session_key: str
    source_count: int
    offsets: Mapping[PartitionKey, int]
    select_big: bool = True
