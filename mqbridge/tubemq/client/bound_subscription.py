"""Bound consumption: a group whose members start together at exact offsets, identified by a session key.

The Master assigns no partition before `source_count` members have joined. All members send the same key, count and `select_big`.
A partition is assigned to a member that listed it, and starts at the listed offset. If several members listed it, the largest
offset is used with `select_big`, else the smallest. Unlisted partitions are spread over the members and start at the group's
position.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.tubemq.wire.string_formats import PartitionKey


class BoundSubscription(NamedTuple):
    """The parameters of one member of a bound group. `offsets` are the requested start offsets by partition."""

    session_key: str
    source_count: int
    offsets: Mapping[PartitionKey, int]
    select_big: bool = True
