"""The id of the last message of a partition: that of the unit in which it lies, and its index there."""

import asyncio
from typing import NamedTuple

from mqbridge.errors import ClusterError, RefusalReason, RequestRefused
from mqbridge.listener.feed import Feed
from mqbridge.listener.server import Services
from mqbridge.message import Position
from mqbridge.pulsar.mapping.unit_format import FORMAT
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.server.topic_names import OpenPartition
from mqbridge.pulsar.wire.entry import read_metadata
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId

READ_TIMEOUT_S = 10.0
"""Maximum time for reading the last unit."""


class LastMessage(NamedTuple):
    """The last message of a partition.

    entry         its entry; (-1, -1) if there is none
    batch_index   its index in the batch; -1 if it is not in one
    mark_deleted  an id after everything that the subscription has acknowledged without a gap, and before the rest; None if it is
                  not known
    """

    entry: EntryId
    batch_index: int
    mark_deleted: EntryId | None


async def find_last(services: Services, message_ids: MessageIds, partition: OpenPartition, feed: Feed) -> LastMessage:
    """Return the last message of a partition. Raises RequestRefused, ClusterError."""
    bounds = await services.partitions.bounds(partition.topic, partition.index)
    mark_deleted = _mark_deleted(message_ids, feed, services)
    if bounds.last is None:
        return LastMessage(EARLIEST, -1, mark_deleted)
    entry, batch_index = await _unit_at(services, message_ids, partition, bounds.last)
    return LastMessage(entry, batch_index, mark_deleted)


def _mark_deleted(message_ids: MessageIds, feed: Feed, services: Services) -> EntryId | None:
    state = feed.state()
    if state is None:
        return None
    ledger, entry = message_ids.entry_id(services.numbering.number(state.mark))
    return ledger, entry - 1


async def _unit_at(
    services: Services, message_ids: MessageIds, partition: OpenPartition, position: Position
) -> tuple[EntryId, int]:
    """Return the id of the unit in which the message at this position lies, and the message's index in it."""
    source = services.partitions.source(partition.topic, partition.index, position)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            batch = await source.receive()
    except TimeoutError:
        raise RequestRefused("the last message is not read in time", RefusalReason.NOT_READY) from None
    finally:
        await source.release()
    number = services.numbering.number(position)
    units = batch.units if batch.has_units and batch.format == FORMAT else None
    if not units or not units[0].position:
        return message_ids.entry_id(number), -1
    unit = units[0]
    first = services.numbering.number(unit.position)
    try:
        metadata, _ = read_metadata(unit.data)
    except ClusterError:
        return message_ids.entry_id(first), -1
    is_batch = metadata.HasField("num_messages_in_batch")
    return message_ids.entry_id(first), (metadata.num_messages_in_batch - 1 if is_batch else -1)
