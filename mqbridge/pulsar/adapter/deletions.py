"""Decides whether a broker has deleted messages that a subscription had not acknowledged.

A broker deletes a ledger only after every durable subscription has acknowledged all of its entries. So everything from the cursor
of the subscription on is still stored, and what was deleted before it was acknowledged, with these exceptions:

- A subscription that was deleted and created again has a new cursor, which is before the first entry of its ledger. Otherwise the
  cursor is the last entry that was acknowledged, also after the ledger of that entry was deleted (seen with Pulsar 4.0).
- A time to live and an evicting backlog quota move the cursor past unread entries, as if they were acknowledged.

An operator who skips messages moves the cursor, too; that counts as an acknowledgement.
"""

import logging

from mqbridge.message import Position, format_position
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.adapter.retention_warnings import effective_policies
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import TopicName

log = logging.getLogger(__name__)


class Deletions:
    """The decisions for one cluster; without `admin` the policies of topics are unknown."""

    def __init__(self, known: KnownEntries, admin: Admin | None) -> None:
        self._known, self._admin = known, admin

    async def deleted_unread(
        self, topic: TopicName, partition_topic: str, begin: Position, first: Position, cursor: EntryId | None
    ) -> bool | None:
        """Return True if messages from `begin` on were deleted unread, None if this cannot be known. Raises ClusterError.

        `first` is the first position that is still stored; `cursor` is the last entry that the subscription acknowledged, None if
        it is unknown.
        """
        if cursor is not None and (cursor[0], cursor[1] + 1, 0) <= begin:
            return False
        if cursor is not None and cursor[1] >= 0:
            return None if await self._may_skip_unread(topic, partition_topic) else False
        if self._known.deleted_from(partition_topic, begin, first[0] if first[0] >= 0 else None):
            return True
        log.info(
            "topic %s: ledgers after position %s are deleted, and the subscription is new, or its cursor is unknown",
            partition_topic,
            format_position(begin),
        )
        return None

    async def _may_skip_unread(self, topic: TopicName, partition_topic: str) -> bool:
        """Return True if the topic has policies that move the subscription past unread messages, or if they are unknown."""
        if self._admin is None:
            log.info(
                "topic %s: another consumer, or a policy of the topic, has moved the subscription: unknown without admin_url",
                partition_topic,
            )
            return True
        policies = await effective_policies(self._admin, topic, exists=True)
        if not policies.ttl_s and not policies.evicts:
            return False
        log.info("topic %s: a time to live or an evicting backlog quota may have moved the subscription", partition_topic)
        return True
