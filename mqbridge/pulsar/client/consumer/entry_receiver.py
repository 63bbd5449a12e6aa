"""Processing of received MESSAGE frames: each entry is queued, stored as a chunk of an incomplete message, or dropped.

Entries of an older SUBSCRIBE and entries that were already delivered are dropped, and no longer count towards the memory limit.
So are entries whose messages are all acknowledged; their acknowledgement is sent again.
"""

import asyncio
from collections.abc import Callable

from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.entry_runs import EntryRun
from mqbridge.pulsar.client.consumer.acknowledger import Acknowledger
from mqbridge.pulsar.client.consumer.arrival_ids import ArrivalIds
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState
from mqbridge.pulsar.client.consumer.flow_permits import entry_memory
from mqbridge.pulsar.client.consumer.receiver_queue import ReceiverQueue
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import full_mask


class EntryReceiver:
    """Receiver of one consumer's entries.

    `partition` is the topic's partition index, -1 for an unpartitioned topic. A message expires if its next chunk does not arrive
    within `chunk_expiry_s` seconds: it is queued with a defect, and `wake` is called. For other entries, `add` and `add_run`
    return whether the queue has grown. `connection` returns the current connection, None without one. `arrival_ids` gives the
    entries their ids, None if the broker does. `keeps_packed` is that of `Subscription`.
    """

    def __init__(
        self,
        state: ConsumerState,
        receiver_queue: ReceiverQueue,
        acks: Acknowledger,
        partition: int,
        chunk_expiry_s: float,
        connection: Callable[[], Connection | None],
        wake: Callable[[], None],
        arrival_ids: ArrivalIds | None = None,
        *,
        keeps_packed: bool = False,
    ) -> None:
        self._arrival_ids, self._keeps_packed = arrival_ids, keeps_packed
        self._state, self._receiver_queue = state, receiver_queue
        self._acks, self._partition = acks, partition
        self._chunk_expiry_s, self._connection = chunk_expiry_s, connection
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._chunk_timer: asyncio.TimerHandle | None = None

    def add(self, frame: Frame) -> bool:
        """Process a MESSAGE; return True if the queue has grown."""
        message, before = frame.command.message, len(self._receiver_queue)
        entry = decode_entry(frame.data, frame.entry_offset)
        entry.ledger, entry.entry = self._arrival_ids.take() if self._arrival_ids else ids.entry_id(message.message_id)
        entry.redelivery_count, entry.keeps_packed = message.redelivery_count, self._keeps_packed
        epoch = message.consumer_epoch if message.HasField("consumer_epoch") else None
        words = message.ack_set
        self._add(entry, entry_memory(entry, len(frame.data)), epoch, ids.from_words(words) if words else None)
        return len(self._receiver_queue) > before

    def add_run(self, run: EntryRun) -> bool:
        """Process a run of ordinary entries (see `entry_runs.py`); return True if the queue has grown.

        The entries of a run are queued together if all are new, and if no partly acknowledged entry and no dropped chunk awaits
        redelivery. Then a run costs little more than one entry. Otherwise the entries are processed one by one.
        """
        receiver_queue, state = self._receiver_queue, self._state
        before = len(receiver_queue)
        if (
            self._arrival_ids is None
            and state.accepts_epoch(run.epoch)
            and state.is_new(run.first)  # then all are, because their ids ascend
            and not (self._acks.partial or receiver_queue.awaits_chunks)
        ):
            for entry in run.entries:
                entry.partition = self._partition
            receiver_queue.permits.on_received(run.messages, *run.charges)
            receiver_queue.add_run(run)
        else:
            for entry, size in zip(run.entries, run.charges, strict=True):
                self._add(self._with_arrival_id(entry), size, run.epoch, mask=None)
        return len(receiver_queue) > before

    def _with_arrival_id(self, entry: Entry) -> Entry:
        """Return a copy of an entry with its arrival id, if this topic has those: a compiled entry keeps the broker's id."""
        if self._arrival_ids is None:
            return entry
        ledger, number = self._arrival_ids.take()
        return Entry(entry.metadata, entry.payload, ledger=ledger, entry=number, redelivery_count=entry.redelivery_count)

    def _add(self, entry: Entry, size: int, epoch: int | None, mask: int | None) -> None:
        """Process an entry that takes `size` bytes; `epoch` numbers its SUBSCRIBE, None if the broker sends no epochs.

        `mask` is the broker's mask of the entry's unacknowledged messages, None if the broker sent no mask.
        """
        receiver_queue, entry_id = self._receiver_queue, entry.id
        entry.partition = self._partition
        # The broker takes no permits for messages that its mask shows as acknowledged. A 0 mask counts as no mask: brokers do
        # not send entries whose messages are all acknowledged.
        receiver_queue.permits.on_received(mask.bit_count() if mask else entry.count, size)
        if not self._state.accepts_epoch(epoch):
            receiver_queue.permits.release(size)
        elif (mask is not None or self._acks.partial) and self._mark_acknowledged(entry, mask):
            receiver_queue.permits.release(size)
            self._state.record_skip(entry_id)
            self._acks.acknowledge_undelivered((entry_id,))
        else:
            # Repeated entries and chunks that were acknowledged before: the broker did not store the acknowledgement.
            if undelivered := receiver_queue.add(entry, size, self._loop.time()):
                self._acks.acknowledge_undelivered(undelivered)
            if receiver_queue.chunks and self._chunk_timer is None:
                self._chunk_timer = self._loop.call_later(self._chunk_expiry_s, self._expire_chunks)

    def _mark_acknowledged(self, entry: Entry, mask: int | None) -> bool:
        """Mark in the entry the messages that are acknowledged at the broker (`mask`) or by this client.

        Return True if all messages are acknowledged. This client's mask is needed because a broker may not store acknowledgements
        of single messages. A damaged entry is delivered as one unacknowledged message.
        """
        unacknowledged = self._acks.partial.on_redelivered(entry.id)
        if (mask is None and unacknowledged is None) or entry.defect is not None:
            return False
        if mask is None or unacknowledged is None:
            mask = unacknowledged if mask is None else mask
        else:
            mask &= unacknowledged
        assert mask is not None  # noqa: S101 - one of the two is set
        if mask.bit_length() > entry.count:  # a broker's mask may have bits beyond the last message
            mask &= full_mask(entry.count)
        entry.ack_set = tuple(ids.to_words(mask))
        return not mask

    def _expire_chunks(self) -> None:
        """Expire messages whose next chunk did not arrive in time; check again while messages are incomplete.

        If no chunk could arrive, because there are no permits or no connection, the time of all messages starts again. After the
        first check, a quarter of the time passes between checks, so a message expires at most that much too late.
        """
        receiver_queue, now = self._receiver_queue, self._loop.time()
        self._chunk_timer = None
        if self._connection() is None or receiver_queue.permits.outstanding <= 0:
            receiver_queue.chunks.restart_timers(now)
        self._acks.acknowledge_undelivered(receiver_queue.add_joined(receiver_queue.chunks.expire(now)))
        if receiver_queue:
            self._wake()
        if receiver_queue.chunks:
            self._chunk_timer = self._loop.call_later(self._chunk_expiry_s / 4, self._expire_chunks)

    def stop(self) -> None:
        """Cancel the timer for incomplete messages."""
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
