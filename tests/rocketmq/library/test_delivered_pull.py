"""Acknowledgement of single messages: which offset of the queue is committed."""

from types import SimpleNamespace
from typing import Any

import pytest

from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_transitions import State
from mqbridge.rocketmq.library.delivered_pull import MERGE_PULLS, PULL_BYTES, DeliveredPull, QueueAcknowledger
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record, encode_record

QUEUE = Queue("orders", "broker-a", 0)


class FakeAssignedQueue:
    """The part of an assigned queue that acknowledgements use; records the commits and the released bytes."""

    def __init__(self, queue: Queue = QUEUE) -> None:
        self.queue, self.revoked, self.charged = queue, False, 0
        self.state = SimpleNamespace(run=1, state=State.READING)
        self.commits: list[int] = []

    def commit(self, offset: int, run: int) -> None:
        assert run == self.state.run
        self.commits.append(offset)

    def hold_budget(self, size: int) -> None:
        self.charged += size

    def release_budget(self, size: int) -> None:
        self.charged -= size


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


# --- memory ---------------------------------------------------------------------------------------------------------


def held_bytes(pulled: PulledRecords) -> int:
    """Return what a pull that is not delivered yet counts on the budget."""
    return pulled.size + PULL_BYTES


def test_a_pull_counts_until_its_messages_are_acknowledged(assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger) -> None:
    pulled = make_pull(0, b"a", b"b")
    assigned.charged = pulled.size  # counted when it was taken
    pull = acknowledger.add(pulled)
    take_all(pull)
    assert assigned.charged == held_bytes(pulled)
    acknowledger.acknowledge(pull, 1)
    acknowledger.acknowledge(pull, 0)
    assert assigned.charged == 0
    assert pull.find_record(0) is None


def test_behind_an_unacknowledged_message_only_its_own_record_is_held(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    slow = make_pull(0, *[b"x" * 100] * 32)
    assigned.charged += slow.size
    first = acknowledger.add(slow)
    take_all(first)
    for offset in range(1, 32):
        acknowledger.acknowledge(first, offset)
    assert assigned.charged == held_bytes(make_pull(0, b"x" * 100))
    for begin in range(32, 32 * 1000, 32):
        pulled = make_pull(begin, *[b"x" * 100] * 32)
        assigned.charged += pulled.size
        pull = acknowledger.add(pulled)
        take_all(pull)
        for offset in range(begin, begin + 32):
            assert acknowledger.acknowledge(pull, offset)
    assert assigned.charged == held_bytes(make_pull(0, b"x" * 100))
    assert len(acknowledger._pulls) <= MERGE_PULLS
    assert max(assigned.commits) == 0
    assert first.find_record(0) is not None
    acknowledger.acknowledge(first, 0)
    assert (assigned.commits[-1], assigned.charged) == (32 * 1000, 0)


def test_the_record_of_a_message_that_was_delivered_last_is_held_alone_once_nothing_else_is_there_to_read(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pulled = make_pull(0, *[b"x" * 100] * 32)
    assigned.charged += pulled.size
    pull = acknowledger.add(pulled)
    for offset in range(32):
        assert pull.take() is not None
        if offset < 31:
            acknowledger.acknowledge(pull, offset)
    assert assigned.charged == held_bytes(pulled)
    acknowledger.drop_acknowledged()
    assert assigned.charged == held_bytes(make_pull(31, b"x" * 100))


def test_messages_that_are_being_sent_back_keep_their_records(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    pulled = make_pull(0, *[b"x" * 100] * 8)
    assigned.charged += pulled.size
    pull = acknowledger.add(pulled)
    take_all(pull)
    assert acknowledger.begin_send_back(pull, 3)
    for offset in (0, 1, 2, 4, 5, 6, 7):
        acknowledger.acknowledge(pull, offset)
    record = pull.find_record(3)
    assert record is not None
    assert record.physical_offset == 1003
    assert assigned.charged == held_bytes(make_pull(3, b"x" * 100))
    acknowledger.end_send_back(pull, 3, is_stored=True)
    assert (assigned.charged, assigned.commits[-1]) == (0, 8)


def test_after_a_jump_nothing_counts_that_was_delivered_before(
    assigned: FakeAssignedQueue, acknowledger: QueueAcknowledger
) -> None:
    for begin in (0, 2):
        pulled = make_pull(begin, b"a", b"b")
        assigned.charged += pulled.size
        pull = acknowledger.add(pulled)
    take_all(pull)
    assigned.state.run = 2
    acknowledger.drop_outdated()
    assert assigned.charged == 0
    assert not acknowledger.acknowledge(pull, 2)


def test_a_reader_need_not_acknowledge(assigned: FakeAssignedQueue) -> None:
    acknowledger = QueueAcknowledger(assigned, commits=False)  # type: ignore[arg-type]
    for begin in range(0, 200, 2):
        pulled = make_pull(begin, b"a", b"b")
        assigned.charged += pulled.size
        pull = acknowledger.add(pulled)
        (_, last) = take_all(pull)
        assert assigned.charged == 0
    assert not acknowledger._pulls
    assert acknowledger.acknowledge(pull, last.position[0])
    assert not acknowledger.acknowledge(pull, last.position[0])
