"""What a MESSAGE becomes: an entry that waits in the inbox, a chunk that waits for the rest of its message, or nothing.

Entries of an older SUBSCRIBE are dropped, and so is what was handed out before; what is not handed out gives its credit back.
"""

import asyncio
from collections.abc import Callable

from mqbridge.pulsar.client.acknowledger import Acknowledger
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.consumer_state import ConsumerState
from mqbridge.pulsar.client.credit import memory_of
from mqbridge.pulsar.client.inbox import Inbox
from mqbridge.pulsar.client.runs import Run
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import full_mask


class EntryIntake:
    """Of one consumer. `wake` is called when chunks that waited too long become an entry."""

    def __init__(
        self,
        state: ConsumerState,
        inbox: Inbox,
        acks: Acknowledger,
        partition: int,
        chunk_expiry_s: float,
        connection: Callable[[], Connection | None],
        wake: Callable[[], None],
    ) -> None:
        self._state, self._inbox, self._acks, self._partition = state, inbox, acks, partition
        self._chunk_expiry_s, self._connection, self._wake = chunk_expiry_s, connection, wake
        self._loop = asyncio.get_running_loop()
        self._chunk_timer: asyncio.TimerHandle | None = None

    def add(self, frame: Frame) -> bool:
        """A MESSAGE; whether the inbox has more than before."""
        message, before = frame.command.message, len(self._inbox)
        entry = decode_entry(frame.data, frame.rest)
        entry.ledger, entry.entry = ids.entry_id(message.message_id)
        entry.redelivery_count = message.redelivery_count
        epoch = message.consumer_epoch if message.HasField("consumer_epoch") else None
        words = message.ack_set
        self._add(entry, memory_of(entry, len(frame.data)), epoch, ids.from_words(words) if words else None)
        return len(self._inbox) > before

    def add_run(self, run: Run) -> bool:
        """The same for entries that are no chunks; where each of them is new it costs little more than one."""
        inbox, state, before = self._inbox, self._state, len(self._inbox)
        if state.is_current(run.epoch) and state.is_new(run.first) and not (self._acks.partial or inbox.awaits_chunks):
            for entry in run.entries:
                entry.partition = self._partition
            inbox.credit.received(run.messages, *run.charges)
            inbox.add_run(run)
        else:
            for entry, size in zip(run.entries, run.charges, strict=True):
                self._add(entry, size, run.epoch, None)
        return len(inbox) > before

    def _add(self, entry: Entry, size: int, epoch: int | None, mask: int | None) -> None:
        """An entry that takes `size` bytes, of which the broker says the mask of what is left."""
        inbox, place = self._inbox, entry.place
        entry.partition = self._partition
        inbox.credit.received(mask.bit_count() if mask else entry.count, size)
        if not self._state.is_current(epoch):
            inbox.credit.handed_over(size)
        elif (mask is not None or self._acks.partial) and self._leave_out_acknowledged(entry, mask):
            inbox.credit.handed_over(size)
            self._state.skip(place)
            self._acks.unseen((place,))
        else:
            if unseen := inbox.add(entry, size, self._loop.time()):
                self._acks.unseen(unseen)
            if inbox.chunks and self._chunk_timer is None:
                self._chunk_timer = self._loop.call_later(self._chunk_expiry_s, self._expire_chunks)

    def _leave_out_acknowledged(self, entry: Entry, mask: int | None) -> bool:
        """Whether all messages of the entry are acknowledged: at the broker, which has said what is left, or here.

        A broker need not keep acknowledgements of single messages. A damaged entry is one message that nobody has acknowledged.
        """
        left = self._acks.partial.came_again(entry.place)
        if (mask is None and left is None) or entry.defect is not None:
            return False
        if mask is None or left is None:
            mask = left if mask is None else mask
        else:
            mask &= left
        assert mask is not None  # noqa: S101 - one of the two said something
        if mask.bit_length() > entry.count:
            mask &= full_mask(entry.count)
        entry.ack_set = tuple(ids.to_words(mask))
        return not mask

    def _expire_chunks(self) -> None:
        """Without credit or a connection nothing could come: then the chunks that are here are not to blame."""
        inbox, now = self._inbox, self._loop.time()
        self._chunk_timer = None
        if self._connection() is None or inbox.credit.outstanding <= 0:
            inbox.chunks.touch(now)
        self._acks.unseen(inbox.add_joined(inbox.chunks.expire(now)))
        if inbox:
            self._wake()
        if inbox.chunks:
            self._chunk_timer = self._loop.call_later(self._chunk_expiry_s / 4, self._expire_chunks)

    def stop(self) -> None:
        """No timer any more."""
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
