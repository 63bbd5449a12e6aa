"""Acknowledgement of single messages, which RocketMQ does not have: it stores one offset per queue and group.

A pull is the response to one pull request: consecutive messages of one queue. A `DeliveredPull` tracks which messages of its pull
are acknowledged. The `QueueAcknowledger` of the queue commits the offset below which every message is acknowledged. A message is
sent back when the consumer asks the broker to redeliver it: the broker stores a copy in the group's retry topic. A message is
outstanding from its delivery on, while it is neither acknowledged nor being sent back.

A message that is sent back needs its stored record. So the records of messages that are outstanding or being sent back stay in
memory, and count against the consumer's `max_bytes`: a consumer whose application acknowledges too little stops pulling. Records
of acknowledged messages are dropped, also behind an outstanding message.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Message
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_transitions import ACKNOWLEDGING
from mqbridge.rocketmq.client.consumer.subscription import RETRY_PREFIX
from mqbridge.rocketmq.library.partitions import partition_name
from mqbridge.rocketmq.mapping.stored import decode_pulls, decode_record
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record

PULL_BYTES = 3072
"""Memory of a pull with few outstanding messages besides their records, rounded up (measured: 2.6 kB)."""
MERGE_PULLS = 64
"""Acknowledged pulls behind an outstanding message are merged once a queue has this many pulls, or twice as many as are left."""


class DeliveredPull:
    """Delivers the messages of one pull, and tracks which are acknowledged.

    It is the `handle` of each `ReceivedMessage` that it delivers. Its records stay in memory, as stored, while messages of it are
    not delivered; from then on only those of messages that are outstanding or being sent back.
    """

    def __init__(self, acknowledger: "QueueAcknowledger", pulled: PulledRecords) -> None:
        self.acknowledger = acknowledger
        self.run = acknowledger.assigned.state.run
        """The run of the queue in which it was pulled; every seek or reset of offsets begins a new run (see `queue_state`)."""
        self.exhausted = asyncio.Event()
        """Set when no message is left to deliver: all are delivered, or the pull is no longer current."""
        self.unacknowledged: set[int] = set()
        """Offsets of delivered messages that are neither acknowledged nor being sent back."""
        self.being_sent_back: set[int] = set()
        """Offsets of messages whose request to send them back has no response yet."""
        self._delivered: deque[int] = deque()
        """Offsets of delivered messages in order; acknowledged ones are removed from the left."""
        self._pulled: PulledRecords | None = pulled
        """The stored records that are still needed; None once no record is."""
        self._first_offset = pulled.first
        self._charged_bytes = pulled.size + PULL_BYTES
        """Bytes that count on the consumer's budget."""
        acknowledger.assigned.hold_budget(PULL_BYTES)
        self._shrink_at = 0
        """Number of needed records at which the others are dropped: half of the records that were kept the last time."""
        self._end_offset = pulled.next
        """The offset after the last message to deliver; the first undelivered one if a revocation ended the delivery."""
        self._messages: Sequence[Message] | None = None
        """The decoded messages; None before the first `take`, empty once exhausted."""
        self._original_topics: Sequence[str] | None = None
        """In a retry queue, the topic to which each message was sent first; None in other queues."""
        self._index = 0
        """Index in `_messages` of the next message to deliver."""

    @property
    def is_current(self) -> bool:
        """True until the queue is revoked, lost or released, or a seek or a reset of offsets begins a new run."""
        assigned = self.acknowledger.assigned
        return not assigned.revoked and assigned.state.run == self.run

    @property
    def may_be_acknowledged(self) -> bool:
        """True while current, and also while a revoked queue waits for acknowledgements before it is unlocked."""
        state = self.acknowledger.assigned.state
        return state.run == self.run and state.state in ACKNOWLEDGING

    def take(self) -> ReceivedMessage | None:
        """Return the next message to deliver; None if there is none. Raises RemoteProtocolError for damaged bytes."""
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
        self._delivered.append(offset)
        queue = self.acknowledger.assigned.queue
        topic = queue.topic if self._original_topics is None else self._original_topics[index]
        if self._index == len(self._messages):
            self.exhaust()
        return ReceivedMessage(message, topic, partition_name(queue), self)

    def _decode(self) -> None:
        """Decode the records; in a retry queue, also find the topic to which each message was sent first."""
        assert self._pulled is not None  # noqa: S101 - it is None only after `exhaust`, which sets `_messages`
        queue = self.acknowledger.assigned.queue
        if queue.topic.startswith(RETRY_PREFIX):
            records = self._pulled.records
            self._messages = [decode_record(record) for record in records]
            self._original_topics = [properties.find(record.properties, Name.RETRY_TOPIC) or queue.topic for record in records]
        else:
            self._messages = decode_pulls([self._pulled])

    def exhaust(self) -> None:
        """Deliver no further message: drop the decoded ones, and the records that are not needed any more, and commit."""
        if not self.exhausted.is_set():
            if self._messages is None:  # the pull is no longer current; undelivered messages must not be committed
                self._end_offset = self._first_offset
            elif self._index < len(self._messages):
                self._end_offset = self._messages[self._index].position[0]
            self._shrink_at, self._index = self._index // 2, 0
            self._messages = self._original_topics = ()
            self.exhausted.set()
            if not (self.is_current and self.acknowledger.commits and self._needed):
                self.drop_records()
            self.acknowledger.commit()

    @property
    def _needed(self) -> int:
        """Number of delivered messages whose records are needed."""
        return len(self.unacknowledged) + len(self.being_sent_back)

    def drop_acknowledged(self) -> None:
        """Drop the records of acknowledged messages, once these are at least half of the messages that have records."""
        if not self.exhausted.is_set() or self._pulled is None or (needed := self._needed) > self._shrink_at:
            return
        self._shrink_at = needed // 2
        if not needed:
            self.drop_records()
            return
        # New sets and queues, because those that were large keep their memory.
        self.unacknowledged, self.being_sent_back = set(self.unacknowledged), set(self.being_sent_back)
        self._delivered = deque(sorted(self.unacknowledged | self.being_sent_back))
        kept = self._pulled.only(self.unacknowledged | self.being_sent_back)
        self._release_budget(self._pulled.size - kept.size)
        self._pulled = kept

    def drop_records(self) -> None:
        """Drop all records, and release the bytes of the pull from the consumer's budget."""
        self._pulled = None
        self._release_budget(self._charged_bytes)

    def _release_budget(self, size: int) -> None:
        self._charged_bytes -= size
        self.acknowledger.assigned.release_budget(size)

    def find_record(self, offset: int) -> Record | None:
        """Return the stored record at this offset; None if it is dropped, or the pull has none."""
        records = self._pulled.records if self._pulled is not None else ()
        return next((record for record in records if record.queue_offset == offset), None)

    def committable_offset(self) -> int | None:
        """Return the offset below which every message is acknowledged; None before the first message is delivered."""
        delivered = self._delivered
        while delivered and delivered[0] not in self.unacknowledged and delivered[0] not in self.being_sent_back:
            delivered.popleft()
        if delivered:
            return delivered[0]
        if self.exhausted.is_set():
            return self._end_offset
        if self._messages and self._index:  # all delivered messages are acknowledged: the next one to deliver is the limit
            return self._messages[self._index].position[0]
        return None

    @property
    def is_acknowledged(self) -> bool:
        """True once no message is left to deliver, and all delivered ones are acknowledged."""
        return self.exhausted.is_set() and self.committable_offset() == self._end_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last message that is delivered, or will be."""
        return self._end_offset

    def append(self, following: "DeliveredPull") -> None:
        """Extend this pull, whose messages are all delivered, by the following one, which is acknowledged."""
        self._end_offset = following.end_offset


class QueueAcknowledger:
    """Holds the pulls of one queue that have unacknowledged messages, and commits the queue's offset.

    Without `commits` (a reader) nothing is committed, so nothing waits for acknowledgements: delivered pulls are not held.
    """

    def __init__(self, assigned: AssignedQueue, *, commits: bool = True) -> None:
        self.assigned, self.commits = assigned, commits
        self._pulls: deque[DeliveredPull] = deque()
        self._merge_at = MERGE_PULLS
        """Number of pulls at which the acknowledged ones are merged."""
        self._recent: list[DeliveredPull] = []
        """Pulls added since the last `drop_acknowledged`."""

    def add(self, pulled: PulledRecords) -> DeliveredPull:
        """Return a DeliveredPull for the newest records of the queue."""
        pull = DeliveredPull(self, pulled)
        if self.commits:
            if len(self._recent) >= MERGE_PULLS:
                self.drop_acknowledged()
            if len(self._pulls) >= self._merge_at:
                self._merge()
            self._pulls.append(pull)
            self._recent.append(pull)
        return pull

    def drop_acknowledged(self) -> None:
        """Drop records of acknowledged messages that no acknowledgement after the delivery of their whole pull has dropped."""
        for pull in self._recent:
            pull.drop_acknowledged()
        self._recent.clear()

    def _merge(self) -> None:
        """Merge each acknowledged pull into the one before it: their number must not grow behind an outstanding message."""
        merged: deque[DeliveredPull] = deque()
        for pull in self._pulls:
            if merged and pull.is_acknowledged:
                merged[-1].append(pull)
            else:
                merged.append(pull)
        self._pulls = merged
        self._merge_at = max(MERGE_PULLS, 2 * len(merged))

    def drop_outdated(self) -> None:
        """Drop all pulls after a seek, a rewind or a reset: their messages can no longer be acknowledged."""
        outdated, self._pulls = self._pulls, deque()
        self._recent.clear()
        for pull in outdated:
            pull.exhaust()
            pull.drop_records()

    @property
    def oldest_outstanding(self) -> int | None:
        """The offset below which every message is acknowledged; None if no message is outstanding."""
        return self._pulls[0].committable_offset() if self._pulls else None

    def acknowledge(self, pull: DeliveredPull, offset: int) -> bool:
        """Acknowledge a message; return False if it is not outstanding, or `pull.may_be_acknowledged` is False."""
        if not pull.may_be_acknowledged or offset not in pull.unacknowledged:
            return False
        pull.unacknowledged.discard(offset)
        pull.drop_acknowledged()
        self.commit()
        return True

    def begin_send_back(self, pull: DeliveredPull, offset: int) -> bool:
        """Mark a message as being sent back; return False if it is not outstanding, or `pull.is_current` is False.

        The committed offset does not pass the message before `end_send_back`.
        """
        if not pull.is_current or offset not in pull.unacknowledged:
            return False
        pull.unacknowledged.discard(offset)
        pull.being_sent_back.add(offset)
        return True

    def end_send_back(self, pull: DeliveredPull, offset: int, *, is_stored: bool) -> None:
        """Acknowledge the message if the broker stored its copy (`is_stored`); otherwise it is outstanding again."""
        pull.being_sent_back.discard(offset)
        if is_stored:
            pull.drop_acknowledged()
            self.commit()
        else:
            pull.unacknowledged.add(offset)

    def commit(self) -> None:
        """Commit the offset below which every message of the queue is acknowledged.

        Drops the pulls before this offset, and those that may no longer be acknowledged.
        """
        offset = None
        while self._pulls and (not self._pulls[0].may_be_acknowledged or self._pulls[0].is_acknowledged):
            pull = self._pulls.popleft()
            if pull.may_be_acknowledged:
                offset = pull.committable_offset()
        # The oldest pull that is left may be acknowledged in part: then its offset is after those of the dropped pulls.
        if self._pulls and (offset_in_oldest := self._pulls[0].committable_offset()) is not None:
            offset = offset_in_oldest
        if offset is not None:
            self.assigned.commit(offset, self.assigned.state.run)
