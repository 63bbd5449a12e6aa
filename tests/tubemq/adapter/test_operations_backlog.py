"""The backlog of a group: the partitions of a store share its index, and each message of a store counts once."""

from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.adapter.operations import backlog_by_partition
from mqbridge.tubemq.client.admin.admin import StoredRange
from mqbridge.tubemq.client.consumer.partition_state import INDEX_ENTRY_BYTES

MESSAGES = 20_000
END = MESSAGES * INDEX_ENTRY_BYTES


def test_a_store_of_several_partitions_counts_once() -> None:
    stored = {f"1:{number}": StoredRange(0, END) for number in range(4)}
    backlog = backlog_by_partition(dict.fromkeys(stored, 0), stored)
    assert backlog == dict.fromkeys(stored, MESSAGES // 4)
    assert sum(backlog.values()) == MESSAGES


def test_stores_and_brokers_count_separately() -> None:
    names = ["1:0", "1:1", "1:10000", "2:0"]  # two stores at Broker 1, the first with two partitions
    stored = {name: StoredRange(0, END) for name in names}
    assert backlog_by_partition(dict.fromkeys(names, 0), stored) == {
        "1:0": MESSAGES // 2,
        "1:1": MESSAGES // 2,
        "1:10000": MESSAGES,
        "2:0": MESSAGES,
    }


def test_a_partition_that_is_not_at_the_end_has_a_backlog_and_one_at_the_end_has_none() -> None:
    stored = {f"1:{number}": StoredRange(10 * INDEX_ENTRY_BYTES, END) for number in range(4)}
    committed = {"1:0": END - INDEX_ENTRY_BYTES, "1:1": END, "1:2": 0, "9:9": 0}
    assert backlog_by_partition(committed, stored) == {"1:0": 1, "1:1": 0, "1:2": -(-(MESSAGES - 10) // 4)}


def test_an_empty_web_address_counts_as_missing() -> None:
    """The shipped configurations insert a variable that need not be set."""
    assert TubeMQCluster(masters="a:8715", admin_url="").admin_url is None  # type: ignore[arg-type]
