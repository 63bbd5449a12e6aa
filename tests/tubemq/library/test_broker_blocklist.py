"""The rules of the Broker blocklist; the tests pass the time as an argument."""

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, RequestTimeout, Unreachable
from mqbridge.tubemq.library import broker_blocklist
from mqbridge.tubemq.library.broker_blocklist import BrokerBlocklist
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import Broker

BROKERS = [Broker(number, f"10.0.0.{number}", 8123) for number in range(1, 11)]
LOST, LATE, AWAY = ConnectionLost("cut"), RequestTimeout("late"), Unreachable("away")
STOPPING = codes.refusal_error("a message", codes.UNAVAILABLE, "stopping")


def blocklist_of(count: int = 10, *, sent: int = 1) -> BrokerBlocklist:
    blocklist = BrokerBlocklist()
    for broker in BROKERS[:count]:
        for _ in range(sent):
            blocklist.count_sent(broker, 0.0)
            blocklist.count_stored(broker)
    return blocklist


def test_a_503_response_blocks_a_broker_for_50_s() -> None:
    blocklist = blocklist_of()
    blocklist.count_failed(BROKERS[0], STOPPING, 0.0)
    assert blocklist.avoided_brokers(49.9) == [BROKERS[0]]
    assert blocklist.avoided_brokers(50.0) == []


@pytest.mark.parametrize("code", [419, 500, 400, 403])
def test_other_refusals_do_not_block_a_broker(code: int) -> None:
    blocklist = blocklist_of()
    for _ in range(20):
        blocklist.count_failed(BROKERS[0], codes.refusal_error("a message", code, ""), 0.0)
    assert blocklist.avoided_brokers(0.1) == []


@pytest.mark.parametrize("error", [LOST, LATE, AWAY], ids=lambda error: type(error).__name__)
def test_four_lost_responses_in_a_row_block_a_broker_for_3_s(error: ClusterError) -> None:
    blocklist = blocklist_of()
    for _ in range(3):
        blocklist.count_failed(BROKERS[0], error, 0.0)
    assert blocklist.avoided_brokers(0.1) == []
    blocklist.count_stored(BROKERS[0])
    for _ in range(3):
        blocklist.count_failed(BROKERS[0], error, 0.0)
    assert blocklist.avoided_brokers(0.1) == []
    blocklist.count_failed(BROKERS[0], error, 1.0)
    assert blocklist.avoided_brokers(3.9) == [BROKERS[0]]
    assert blocklist.avoided_brokers(4.0) == []


def test_failed_connects_ban_at_most_a_share_of_the_brokers() -> None:
    blocklist = blocklist_of(10)
    for broker in BROKERS[:5]:
        for _ in range(6):
            blocklist.count_failed(broker, AWAY, 1.0)
    assert blocklist.avoided_brokers(100.0) == BROKERS[:3], "0.3 of ten"
    blocklist.count_stored(BROKERS[0])
    assert blocklist.avoided_brokers(100.0) == BROKERS[1:3]
    assert blocklist.avoided_brokers(1801.0) == []


def test_failed_connects_spread_over_time_ban_no_broker() -> None:
    blocklist = blocklist_of(10)
    for attempt in range(20):
        blocklist.count_failed(BROKERS[0], AWAY, attempt * 15.0)
    assert blocklist.avoided_brokers(19 * 15.0 + 10) == []


@pytest.mark.parametrize(("count", "banned"), [(1, 0), (2, 1), (4, 1)])
def test_banned_share_of_small_clusters(count: int, banned: int) -> None:
    blocklist = blocklist_of(count)
    for broker in BROKERS[:count]:
        for _ in range(6):
            blocklist.count_failed(broker, AWAY, 0.0)
    assert len(blocklist.avoided_brokers(60.0)) == banned


def compared(good: list[int], sent: list[int]) -> BrokerBlocklist:
    """A blocklist with these counts, which has compared the Brokers at 30 s."""
    blocklist = BrokerBlocklist()
    for broker, stored, count in zip(BROKERS, good, sent, strict=False):
        for _ in range(count):
            blocklist.count_sent(broker, 0.0)
        for _ in range(stored):
            blocklist.count_stored(broker)
    blocklist.count_sent(BROKERS[0], 30.0)
    return blocklist


def test_a_broker_that_stores_far_fewer_messages_is_avoided() -> None:
    blocklist = compared([100] * 9 + [3], [100] * 10)
    assert blocklist.avoided_brokers(59.9) == [BROKERS[9]]
    assert blocklist.avoided_brokers(60.0) == []


@pytest.mark.parametrize(
    ("good", "sent"),
    [([100] * 9 + [15], [100] * 10), ([100] * 9 + [1], [100] * 9 + [25]), ([100, 100, 0], [100] * 3), ([0], [100])],
    ids=["not so few", "too little to judge", "too few Brokers", "the only one"],
)
def test_brokers_that_are_not_compared(good: list[int], sent: list[int]) -> None:
    assert compared(good, sent).avoided_brokers(31.0) == []


def test_at_most_a_share_of_the_brokers_is_avoided_for_few_stored_messages() -> None:
    blocklist = compared([100] * 6 + [0] * 4, [100] * 10)
    assert len(blocklist.avoided_brokers(31.0)) == round(10 * broker_blocklist.MAX_POOR_SHARE) == 2
