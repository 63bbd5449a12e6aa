"""The oracle of the end-to-end tests detects loss, reordering, damage and repetition."""

from mqbridge.message import Message
from tests.kit.oracle import Oracle, message


def oracle_of(numbers: list[int], count: int = 5, partition: int = 0) -> Oracle:
    """Return an oracle that has seen these messages of a partition which should have `count`."""
    oracle = Oracle([count, count], 50)
    oracle.see(partition, [message(partition, number, 50) for number in numbers])
    return oracle


def complete(oracle: Oracle, partition: int = 0) -> bool:
    return oracle.partitions[partition].complete


def test_all_messages_in_order_are_complete() -> None:
    oracle = oracle_of([0, 1, 2, 3, 4])
    assert complete(oracle)
    assert oracle.repeats == 0


def test_lost_and_reordered_messages_are_detected() -> None:
    assert not complete(oracle_of([0, 1, 3, 4]))
    assert not complete(oracle_of([0, 1, 2, 3]))
    assert not complete(oracle_of([0, 2, 1, 3, 4]))


def test_a_repeated_run_must_repeat_every_message_after_it() -> None:
    oracle = oracle_of([0, 1, 2, 1, 2, 3, 4])
    assert complete(oracle)
    assert oracle.repeats == 2
    assert not complete(oracle_of([0, 1, 2, 1, 3, 4]))


def test_damaged_and_unknown_messages_are_reported() -> None:
    oracle = Oracle([1], 50)
    good = message(0, 0, 50)
    oracle.see(0, [good.replace(payload=(good.payload or b"")[:-1] + b"?")])
    assert "damaged" in oracle.partitions[0].wrong[0]
    oracle = Oracle([1], 50)
    oracle.see(0, [good.replace(attributes=b"x=1")])
    assert "has attributes" in oracle.partitions[0].wrong[0]
    oracle = Oracle([1, 1], 50)
    oracle.see(1, [good, Message(b"")])
    assert len(oracle.partitions[1].wrong) == 2
