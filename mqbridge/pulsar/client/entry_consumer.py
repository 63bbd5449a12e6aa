"""A consumer of one concrete topic (a partition, or an unpartitioned topic) that reconnects: the calls of an application.

After a reconnection the broker delivers again what was not acknowledged; where the order of a topic is one consumer's (exclusive,
failover, reader) what this one has handed out already is skipped, so the application sees no duplicates while it lives. On shared
subscriptions duplicates are normal.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.client.consumer_handler import ConsumerHandler
from mqbridge.pulsar.client.consumer_requests import ConsumerStats
from mqbridge.pulsar.client.lookup import retrying
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId

NEGATIVE_ACK_DELAY_S = 60.0


class EntryConsumer(ConsumerHandler):
    """A consumer; `open` subscribes it for the first time. Made inside a running loop."""

    # --- receiving --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of entries that `receive` would return at once."""
        return len(self._inbox)

    @property
    def handed_out(self) -> EntryId:
        """The furthest entry that was handed out. A message whose last chunks never came may come behind it."""
        return self._state.delivered

    async def receive(self) -> Entry:
        """Wait for the next entry; return it unpacked. Raises ClusterError when the consumer has ended."""
        while True:
            entry = self.take()
            if entry is not None:
                return entry
            if self.ended is not None:
                raise self.ended
            await self._wait()

    def take(self) -> Entry | None:
        """Return the next entry if there is one."""
        entry = self._inbox.take()
        if entry is None:
            return None
        if self.subscription.ack_timeout_s is not None:
            self._acks.handed_out(entry.place)
        self._grant()
        entry.unpack()
        return entry

    def lend(self, max_bytes: int, max_memory: int, most: int) -> list[Entry]:
        """Take the entries that wait, up to `max_bytes` of payload, `max_memory` of memory, or `most`; at least one, if any.

        They count as held here until `give_back`.
        """
        entries = self._inbox.lend(max_bytes, max_memory, most)
        for entry in entries:
            entry.unpack()
        if self.subscription.ack_timeout_s is not None:
            for entry in entries:
                self._acks.handed_out(entry.place)
        self._grant()
        return entries

    @property
    def share(self) -> int:
        """The bytes that it may hold."""
        return self._inbox.permits.share

    def give_back(self) -> None:
        """The lent entries are accounted for elsewhere, or dropped: release their bytes."""
        if self._inbox.permits.deferred:
            self._inbox.permits.release_deferred()
            self._grant()

    async def wait_active(self, active: bool) -> None:
        """Wait until a failover subscription makes this consumer the active one, or no longer does. Raises as `receive`."""
        while self.active is not active:
            if self.ended is not None:
                raise self.ended
            await self._wait()

    async def wait_over(self, term: int) -> None:
        """Wait until the consumer has become passive since this `term`, even if it is active again. Raises as `receive`."""
        while self.active and self.term == term:
            if self.ended is not None:
                raise self.ended
            await self._wait()

    async def changed(self, timeout: float) -> None:
        """Wait until an entry is there or something else has happened, at most `timeout` seconds."""
        if not self._inbox and self.ended is None:
            await self.changed_within(timeout)

    async def changed_within(self, timeout: float) -> None:
        """Wait until something has happened, at most `timeout` seconds."""
        timer = asyncio.get_running_loop().call_later(timeout, self._changed.set)  # a third of what asyncio.timeout takes
        try:
            await self._wait()
        finally:
            timer.cancel()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, entry: EntryId) -> None:
        """Acknowledge this entry, with all of its chunks."""
        self._acks.entry(entry)

    def acknowledge_message(self, entry: EntryId, index: int, count: int) -> None:
        """Acknowledge message `index` of the batch of `count` in this entry."""
        self._acks.messages(entry, 1 << index, count)

    def acknowledge_messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Acknowledge the messages of the bit mask `done` of this entry's `count`; return True if the entry is done with them."""
        return self._acks.messages(entry, done, count)

    def acknowledge_up_to(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Acknowledge this entry and all before it, or its messages up to `index` only; exclusive and failover.

        Does nothing for an entry that was not handed out, or will be handed out again.
        """
        self._acks.up_to(entry, index, count)

    def flush_acks(self) -> None:
        """Send the acknowledgements now; without a connection they wait for the next one."""
        self._acks.flush()

    async def confirm_acks(self) -> None:
        """Send the acknowledgements and wait until the broker confirms them. Raises ClusterError; they are then sent again."""
        await self._acks.confirm(self._live_connection())

    def negative_acknowledge(self, entry: EntryId, delay_s: float = NEGATIVE_ACK_DELAY_S) -> None:
        """Have this entry delivered again after a delay, as `redeliver` does; counted by the broker on shared subscriptions."""
        self._acks.negative(entry, delay_s)

    # --- positions --------------------------------------------------------------------------------------------------

    async def last_id(self) -> EntryId:
        """Return the newest entry of the topic, (-1, -1) if it is empty. Raises ClusterError."""
        answer = await retrying(self._requests.last, self._request_timeout_s)
        return ids.entry_id(answer.last_message_id)

    async def last_message(self) -> tuple[int, int, int]:
        """The newest message: ledger, entry, and index in the entry's batch, -1 where that is none. Raises ClusterError."""
        last = (await retrying(self._requests.last, self._request_timeout_s)).last_message_id
        return (*ids.entry_id(last), last.batch_index)

    async def has_more(self) -> bool:
        """Return True if the topic has entries beyond those received, or acknowledged before. Raises ClusterError."""
        return bool(self._inbox) or await self._last_unreceived() is not None

    async def seek(self, entry: EntryId | None = None, *, publish_time: int | None = None) -> None:
        """Continue with this entry, or with the first one published at that time (ms) or later. Raises ClusterError.

        Acknowledgements that are not sent yet are dropped: they would move the position again.
        """

        async def ask() -> None:
            try:
                await self._requests.seek(entry, publish_time)
            except ClusterError:
                if self._connection() is None:
                    self._reopen()  # the broker had closed the consumer to seek, and then its answer was lost
                raise

        self._state.seeking()
        self._acks.forget()
        self._inbox.drop()
        try:
            await retrying(ask, self._request_timeout_s)
        finally:
            self._state.seek_done(entry)
            self._resubscribe(self._forget)

    async def stats(self) -> ConsumerStats:
        """Return the broker's statistics of this consumer. Raises ClusterError."""
        return await retrying(self._requests.stats, self._request_timeout_s)

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, which ends the consumer. Raises ClusterError if it has other consumers, unless by `force`."""
        self._unsubscribing = True
        try:
            await self._requests.unsubscribe(force)
            self.end(ClusterError(f"the subscription {self.subscription.name} of {self.topic} is deleted", Failure.FATAL))
        finally:
            self._unsubscribing = False
            if self._connection() is None:
                self._reopen()
