"""Bound groups: the members of such a group start together, at offsets that they choose. A session key identifies the start.

All members send the same session key, `source_count` and `select_big`, and each sends a list of partitions with start offsets.
The Master assigns no partition before `source_count` members have joined. It assigns a listed partition to a member that listed
it, and the partition starts at the listed offset. If several members listed it, the largest of their offsets counts with
`select_big`, else the smallest. Partitions that no member listed are spread over the members and start at the group's position.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.tubemq.wire.string_formats import PartitionKey


class BoundSubscription(NamedTuple):
    """The parameters of one member of a bound group.

    `source_count` is the number of members; `offsets` are the start offsets of the partitions that this member lists. If several
    members list a partition, the largest of their offsets counts with `select_big=True`, the smallest with False.
    """

    session_key: str
    source_count: int
    offsets: Mapping[PartitionKey, int]
    select_big: bool = True
