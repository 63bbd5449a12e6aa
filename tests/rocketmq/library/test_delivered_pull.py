"""Acknowledgement of single messages: which offset of the queue is committed."""

from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_transitions import State
from mqbridge.rocketmq.library.delivered_pull import DeliveredPull, QueueAcknowledger
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record

QUEUE = Queue("orders", "broker-a", 0)


class FakeAssignedQueue:
    """The part of an assigned queue that acknowledgements use; records the commits and the released bytes."""

    def __init__(self, queue: Queue = QUEUE) -> None:
        self.queue, self.revoked, self.released = queue, False, 0
        self.state = SimpleNamespace(run=1, state=State.READING)
        self.commits: list[int] = []

    def commit(self, offset: int, run: int) -> None:
        assert run == self.state.run
        self.commits.append(offset)

    def release_budget(self, size: int) -> None:
        self.released += size


def make_pull(
    first: int, *payloads: bytes, next_: int | None = None, queue: Queue = QUEUE, properties: bytes = b""
) -> PulledRecords:
    records = [
        Record(queue.topic, payload, properties, queue_offset=first + index, physical_offset=1000 + index)
        for index, payload in enumerate(payloads)
    ]
    return PulledRecords(queue, b"".join(map(encode_record, records)), first, next_ or first + len(payloads))


@pytest.fixture
def assigned() -> FakeAssignedQueue:
    return FakeAssignedQueue()


@pytest.fixture
def acknowledger(assigned: Any) -> QueueAcknowledger:
    return QueueAcknowledger(assigned)


def take_all(pull: DeliveredPull) -> list[Any]:
    messages = []
    while (message := pull.take()) is not None:
        messages.append(message)
    return messages


def test_the_offset_passes_messages_once_all_before_are_acknowledged(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pull = acknowledger.add(make_pull(5, b"a", b"b", b"c"))
    a, *_ = take_all(pull)
    assert (a.payload, a.topic, a.partition, a.position) == (b"a", "orders", "broker-a:0", (5,))
    assert acknowledger.acknowledge(pull, 7)
    assert acknowledger.acknowledge(pull, 6)
    assert set(assigned.commits) == {5}
    assert acknowledger.acknowledge(pull, 5)
    assert assigned.commits[-1] == 8
    assert not acknowledger.acknowledge(pull, 5), "a second acknowledgement"


def test_pulls_are_committed_in_order(assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger) -> None:
    first, second = acknowledger.add(make_pull(0, b"a")), acknowledger.add(make_pull(1, b"b"))
    take_all(first), take_all(second)
    acknowledger.acknowledge(second, 1)
    assert max(assigned.commits) == 0
    acknowledger.acknowledge(first, 0)
    assert assigned.commits[-1] == 2


def test_the_offset_does_not_pass_a_message_that_is_not_delivered(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pull = acknowledger.add(make_pull(0, b"a", b"b"))
    assert pull.take() is not None
    acknowledger.acknowledge(pull, 0)
    assert assigned.commits[-1] == 1
    assert not acknowledger.acknowledge(pull, 1)
    assert assigned.released == 0
    take_all(pull)
    assert assigned.released > 0, "its bytes are released once all messages are delivered"


def test_a_pull_whose_messages_are_all_filtered_is_committed(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pull = acknowledger.add(make_pull(3, next_=10))
    assert pull.take() is None
    assert (assigned.commits[-1], pull.exhausted.is_set()) == (10, True)


def test_the_offset_does_not_pass_a_message_that_is_being_sent_back(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pull = acknowledger.add(make_pull(0, b"a", b"b"))
    take_all(pull)
    assert acknowledger.begin_send_back(pull, 0)
    assert not acknowledger.acknowledge(pull, 0)
    acknowledger.acknowledge(pull, 1)
    assert max(assigned.commits) == 0
    record = pull.find_record(0)
    assert record is not None
    assert record.physical_offset == 1000
    acknowledger.end_send_back(pull, 0, is_stored=False)
    assert max(assigned.commits) == 0
    assert acknowledger.begin_send_back(pull, 0)
    acknowledger.end_send_back(pull, 0, is_stored=True)
    assert assigned.commits[-1] == 2


def test_an_acknowledgement_from_before_a_seek_has_no_effect(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    before = acknowledger.add(make_pull(0, b"a", b"b"))
    assert before.take() is not None
    assigned.state.run = 2
    assert not acknowledger.acknowledge(before, 0)
    assert not acknowledger.begin_send_back(before, 0)
    assert before.take() is None
    assert before.exhausted.is_set()
    after = acknowledger.add(make_pull(0, b"a", b"b"))
    take_all(after)
    acknowledger.acknowledge(after, 0)
    assert assigned.commits[-1] == 1


def test_a_revoked_queue_delivers_nothing(assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger) -> None:
    pull = acknowledger.add(make_pull(0, b"a", b"b"))
    assert pull.take() is not None
    assigned.revoked, assigned.state.state = True, State.RELEASED
    assert pull.take() is None
    assert not acknowledger.acknowledge(pull, 0)
    assert assigned.commits == []


@pytest.mark.parametrize(("delivered", "committed"), [(0, 5), (1, 6), (2, 7)])
def test_a_queue_that_settles_does_not_commit_messages_that_are_not_delivered(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger, delivered: int, committed: int
) -> None:
    pull = acknowledger.add(make_pull(5, b"a", b"b", b"c"))
    messages = [pull.take() for _ in range(delivered)]
    assigned.revoked, assigned.state.state = True, State.SETTLING
    assert pull.take() is None
    for message in messages:
        assert message is not None
        assert acknowledger.acknowledge(pull, message.position[0])
    assert assigned.commits[-1] == committed


def test_a_message_of_a_retry_queue_has_its_original_topic() -> None:
    queue = Queue("%RETRY%billing", "broker-a", 0)
    acknowledger = QueueAcknowledger(FakeAssignedQueue(queue))  # type: ignore[arg-type]
    pull = acknowledger.add(make_pull(0, b"a", queue=queue, properties=b"RETRY_TOPIC\x01orders\x02"))
    (message,) = take_all(pull)
    assert (message.topic, message.partition) == ("orders", "broker-a:0")
