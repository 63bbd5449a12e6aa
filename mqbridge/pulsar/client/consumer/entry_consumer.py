"""Consumer of one concrete topic (a partition, or an unpartitioned topic): the methods for applications.

Entries are delivered unpacked, that is decompressed; an entry that cannot be unpacked is delivered with a `defect`.

After a reconnection the broker redelivers all unacknowledged entries. On ordered subscriptions (exclusive, failover, reader) the
consumer drops entries that it has already delivered, so the application sees no duplicates during the life of the consumer. On
shared subscriptions duplicates are normal.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.client.connection.lookup import retry
from mqbridge.pulsar.client.consumer.consumer_handler import ConsumerHandler
from mqbridge.pulsar.client.consumer.consumer_requests import ConsumerStats
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId

NEGATIVE_ACK_DELAY_S = 60.0
"""Default delay between a negative acknowledgement and the redelivery, in seconds."""


class EntryConsumer(ConsumerHandler):
    """A consumer that reconnects; `open` subscribes for the first time. Create it inside a running loop."""

    # --- receiving --------------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of entries in the receiver queue, which `receive` would return at once."""
        return len(self._receiver_queue)

    @property
    def last_delivered(self) -> EntryId:
        """The latest entry that was delivered; EARLIEST if there is none. A seek or a redelivery of all entries resets it.

        For a reader that began at LATEST, it is at least the broker's cursor at that time. A chunked message that expires may
        be delivered after it, with an earlier id.
        """
        return self._state.delivered

    async def receive(self) -> Entry:
        """Wait for the next entry and return it unpacked. Raises ClusterError if the consumer has ended."""
        while True:
            entry = self.take()
            if entry is not None:
                return entry
            if self.end_error is not None:
                raise self.end_error
            await self._wait_for_change()

    def take(self) -> Entry | None:
        """Return the next entry unpacked, None if the receiver queue is empty."""
        entry = self._receiver_queue.take()
        if entry is None:
            return None
        if self.subscription.ack_timeout_s is not None:
            self._acks.start_ack_timeout(entry.id)
        self._grant_permits()
        entry.unpack()
        return entry

    def take_many(self, max_bytes: int, max_memory: int, max_entries: int) -> list[Entry]:
        """Take the next entries, unpacked, until one of the three limits is reached.

        `max_bytes` limits their size as received, `max_memory` their bytes of memory when unpacked. At least one entry is
        returned unless the receiver queue is empty. The memory counts against the receive budget until `release_taken`.
        """
        entries = self._receiver_queue.take_many(max_bytes, max_memory, max_entries)
        for entry in entries:
            entry.unpack()
        if self.subscription.ack_timeout_s is not None:
            for entry in entries:
                self._acks.start_ack_timeout(entry.id)
        self._grant_permits()
        return entries

    @property
    def share(self) -> int:
        """Bytes of memory that the entries of this consumer may take: its share of the receive budget."""
        return self._receiver_queue.permits.share

    def release_taken(self) -> None:
        """Release the memory of the entries from `take_many`, because they were dropped or the caller accounts for them."""
        if self._receiver_queue.permits.deferred:
            self._receiver_queue.permits.release_deferred()
            self._grant_permits()

    async def wait_active(self, active: bool) -> None:
        """Wait until this consumer of a failover subscription is active; with `active` False, until it is passive.

        Raises ClusterError if the consumer has ended.
        """
        while self.active is not active:
            if self.end_error is not None:
                raise self.end_error
            await self._wait_for_change()

    async def wait_deactivated(self, deactivations: int) -> None:
        """Return once the consumer has become passive, even if it has become active again in the meantime.

        `deactivations` is the value of `self.deactivations` when the caller last saw the consumer active. Raises ClusterError if
        the consumer has ended.
        """
        while self.active and self.deactivations == deactivations:
            if self.end_error is not None:
                raise self.end_error
            await self._wait_for_change()

    async def wait_available(self, timeout: float) -> None:
        """Wait as `wait_change` does, but return at once if an entry is queued or the consumer has ended."""
        if not self._receiver_queue and self.end_error is None:
            await self.wait_change(timeout)

    async def wait_change(self, timeout: float) -> None:
        """Wait for the next change, a new entry or a change of the consumer's state; at most `timeout` seconds."""
        timer = asyncio.get_running_loop().call_later(
            timeout, self._changed.set
        )  # needs a third of the CPU time of asyncio.timeout
        try:
            await self._wait_for_change()
        finally:
            timer.cancel()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, entry: EntryId) -> None:
        """Acknowledge this entry, with all of its chunks."""
        self._acks.acknowledge(entry)

    def acknowledge_message(self, entry: EntryId, index: int, count: int) -> None:
        """Acknowledge message `index` of the batch of `count` in this entry."""
        self._acks.acknowledge_messages(entry, 1 << index, count)

    def acknowledge_messages(self, entry: EntryId, acknowledged: int, count: int) -> bool:
        """Acknowledge the messages whose bits are set in `acknowledged`, of the entry's `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        return self._acks.acknowledge_messages(entry, acknowledged, count)

    def acknowledge_up_to(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Acknowledge all earlier entries and this entry; with `index`, only messages 0 to `index` of its `count` messages.

        `index` None stands for all messages of the entry. Only for ordered subscriptions. Does nothing if the entry was not
        delivered, or will be delivered again.
        """
        self._acks.acknowledge_up_to(entry, index, count)

    def flush_acks(self) -> None:
        """Send the pending acknowledgements now; without a connection they are sent over the next one."""
        self._acks.flush()

    async def confirm_acks(self) -> None:
        """Send the pending acknowledgements and wait for their receipts.

        Raises ClusterError; the acknowledgements without a receipt will then be sent again.
        """
        await self._acks.confirm(self._live_connection())

    def negative_acknowledge(self, entry: EntryId, delay_s: float = NEGATIVE_ACK_DELAY_S) -> None:
        """Request the redelivery of this entry after `delay_s` seconds.

        On shared subscriptions the broker redelivers only this entry, and counts the redeliveries; on ordered subscriptions it
        redelivers all unacknowledged entries.
        """
        self._acks.negative_acknowledge(entry, delay_s)

    # --- positions --------------------------------------------------------------------------------------------------

    async def last_id(self) -> EntryId:
        """Return the id of the topic's newest entry, (-1, -1) if the topic is empty. Raises ClusterError."""
        response = await retry(self._requests.last_message_id, self._request_timeout_s)
        return ids.entry_id(response.last_message_id)

    async def last_message(self) -> tuple[int, int, int]:
        """Return ledger, entry and batch index of the newest message; the index is -1 without a batch. Raises ClusterError."""
        last = (await retry(self._requests.last_message_id, self._request_timeout_s)).last_message_id
        return (*ids.entry_id(last), last.batch_index)

    async def cursor(self) -> EntryId | None:
        """Return the last of the entries that the subscription has acknowledged without a gap. Raises ClusterError.

        A new subscription has entry -1 of the ledger in which it begins. None if the broker does not report the cursor.
        """
        response = await retry(self._requests.last_message_id, self._request_timeout_s)
        has_cursor = response.HasField("consumer_mark_delete_position")
        cursor = ids.entry_id(response.consumer_mark_delete_position) if has_cursor else ids.EARLIEST
        return cursor if cursor > ids.EARLIEST else None

    async def has_more(self) -> bool:
        """Return True if entries are queued, or if the topic has entries after the last one received or acknowledged.

        Raises ClusterError.
        """
        return bool(self._receiver_queue) or await self._find_unreceived() is not None

    async def seek(self, entry: EntryId | None = None, *, publish_time: int | None = None) -> None:
        """Continue with this entry, or with the first entry published at `publish_time` or later. Raises ClusterError.

        Give one of the two; `publish_time` is in milliseconds since the epoch. Pending acknowledgements are discarded, because
        they would move the cursor again. The consumer then subscribes again, also after an error: the broker may have moved the
        cursor nevertheless.
        """

        async def seek_once() -> None:
            try:
                await self._requests.seek(entry, publish_time)
            except ClusterError:
                if self._connection() is None:
                    self._reopen()  # the broker closed the consumer, as for every seek, but its response was lost
                raise

        self._state.begin_seek()
        self._acks.forget()
        self._receiver_queue.drop()
        try:
            await retry(seek_once, self._request_timeout_s)
        finally:
            self._state.end_seek(entry)
            self._resubscribe(self._forget)  # `_forget` drops entries and acknowledgements from before the seek

    async def stats(self) -> ConsumerStats:
        """Return the broker's statistics of this consumer. Raises ClusterError."""
        return await retry(self._requests.stats, self._request_timeout_s)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and end this consumer.

        Raises ClusterError; also if the subscription has other consumers, unless `force` is set.
        """
        self._unsubscribing = True  # the broker closes the consumer, which must not be reopened during the request
        try:
            await self._requests.unsubscribe(force)
            self.end(ClusterError(f"subscription {self.subscription.name} of topic {self.topic} is deleted", Failure.FATAL))
        finally:
            self._unsubscribing = False
            if self._connection() is None:  # lost, or closed by the broker; after `end`, `_reopen` does nothing
                self._reopen()
