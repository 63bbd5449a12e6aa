"""One pull of one queue while its messages are handed out and acknowledged, each by itself.

A group has one offset per queue. It moves over a message when that one and all before it are acknowledged.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Message
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.client.queue_transitions import ACKNOWLEDGING
from mqbridge.rocketmq.client.subscription import RETRY_PREFIX
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.mapping.stored import decode_pulls, read
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record


class DeliveredPull:
    """The messages of a pull. Their records stay in memory, as stored, until all of them are acknowledged."""

    def __init__(self, acknowledger: "QueueAcknowledger", pulled: PulledRecords) -> None:
        self.acknowledger, self.run = acknowledger, acknowledger.assigned.state.run
        self.exhausted = asyncio.Event()
        """Set when every message is handed out, or none of them counts any more."""
        self.unacknowledged: set[int] = set()
        """Offsets that are handed out and wait for an acknowledgement."""
        self.returning: set[int] = set()
        """Offsets that are being sent back."""
        self._order: deque[int] = deque()
        """Offsets that were handed out, from the first one on that is not acknowledged."""
        self._pulled: PulledRecords | None = pulled
        self._end, self._size = pulled.next, pulled.size
        self._messages: Sequence[Message] | None = None
        self._topics: Sequence[str] | None = None
        """The topic of each message, in a retry queue."""
        self._index = 0

    @property
    def is_current(self) -> bool:
        """False once the queue was taken away, or reading went on elsewhere after a seek."""
        assigned = self.acknowledger.assigned
        return not assigned.revoked and assigned.state.run == self.run

    @property
    def may_be_acknowledged(self) -> bool:
        """True while current, and for a moment more: a queue with a lock waits for acknowledgements before it is given away."""
        state = self.acknowledger.assigned.state
        return state.run == self.run and state.state in ACKNOWLEDGING

    def take(self) -> ReceivedMessage | None:
        """Hand out the next message; None when there is none. Raises RemoteProtocolError for bytes that cannot be read."""
        if not self.is_current:
            self.exhaust()
            return None
        if self._messages is None:
            self._decode()
        assert self._messages is not None  # noqa: S101 - for the type checker
        if self._index >= len(self._messages):
            self.exhaust()
            return None
        message, index = self._messages[self._index], self._index
        self._index += 1
        offset = message.position[0]
        self.unacknowledged.add(offset)
        self._order.append(offset)
        queue = self.acknowledger.assigned.queue
        topic = queue.topic if self._topics is None else self._topics[index]
        if self._index == len(self._messages):
            self.exhaust()
        return ReceivedMessage(message, topic, partition_name(queue), self)

    def _decode(self) -> None:
        assert self._pulled is not None  # noqa: S101 - nothing is acknowledged before it is decoded
        queue = self.acknowledger.assigned.queue
        if queue.topic.startswith(RETRY_PREFIX):
            records = self._pulled.records
            self._messages = [read(record) for record in records]
            self._topics = [properties.find(record.properties, Name.RETRY_TOPIC) or queue.topic for record in records]
        else:
            self._messages = decode_pulls([self._pulled])

    def exhaust(self) -> None:
        """Hand out nothing more: every message is handed out, or the pull is no longer current."""
        if not self.exhausted.is_set():
            self._index = 0
            self._messages = self._topics = ()
            self.acknowledger.assigned.release_budget(self._size)
            self.exhausted.set()
            self.acknowledger.commit()

    def record(self, offset: int) -> Record | None:
        """The record as stored."""
        records = self._pulled.records if self._pulled is not None else ()
        return next((record for record in records if record.queue_offset == offset), None)

    @property
    def committable(self) -> int | None:
        """The offset below which all is acknowledged; None where that is unknown, as nothing was handed out yet."""
        while self._order and self._order[0] not in self.unacknowledged and self._order[0] not in self.returning:
            self._order.popleft()
        if self._order:
            return self._order[0]
        if self.exhausted.is_set():
            self._pulled = None
            return self._end
        if self._messages and self._index:
            return self._messages[self._index].position[0]
        return None

    @property
    def is_done(self) -> bool:
        """True when everything is handed out and acknowledged."""
        return self.exhausted.is_set() and self.committable == self._end


class QueueAcknowledger:
    """The pulls of one queue that are not entirely acknowledged; commits the queue's offset."""

    def __init__(self, assigned: AssignedQueue) -> None:
        self.assigned = assigned
        self._pulls: deque[DeliveredPull] = deque()

    def add(self, pulled: PulledRecords) -> DeliveredPull:
        """Begin to hand out a pull."""
        while self._pulls and not self._pulls[0].is_current:
            self._pulls.popleft()
        handed_out = DeliveredPull(self, pulled)
        self._pulls.append(handed_out)
        return handed_out

    def acknowledge(self, handed_out: DeliveredPull, offset: int) -> bool:
        """Mark a message as done; False if it is no longer ours, or not outstanding."""
        if not handed_out.may_be_acknowledged or offset not in handed_out.unacknowledged:
            return False
        handed_out.unacknowledged.discard(offset)
        self.commit()
        return True

    def begin_return(self, handed_out: DeliveredPull, offset: int) -> bool:
        """Mark a message as being sent back; like `acknowledge`, but its offset is not passed before `end_return`."""
        if not handed_out.is_current or offset not in handed_out.unacknowledged:
            return False
        handed_out.unacknowledged.discard(offset)
        handed_out.returning.add(offset)
        return True

    def end_return(self, handed_out: DeliveredPull, offset: int, *, is_stored: bool) -> None:
        """The message is stored in the retry topic, or could not be sent back and is outstanding again."""
        handed_out.returning.discard(offset)
        if is_stored:
            self.commit()
        else:
            handed_out.unacknowledged.add(offset)

    def commit(self) -> None:
        """Move the queue's offset over all that is acknowledged."""
        offset = None
        while self._pulls and (not self._pulls[0].may_be_acknowledged or self._pulls[0].is_done):
            handed_out = self._pulls.popleft()
            if handed_out.may_be_acknowledged:
                offset = handed_out.committable
        if self._pulls and (begun := self._pulls[0].committable) is not None:
            offset = begun
        if offset is not None:
            self.assigned.commit(offset, self.assigned.state.run)
