"""String formats: examples of the protocol, round trips, and malformed text."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.tubemq.wire import string_formats
from mqbridge.tubemq.wire.string_formats import Broker, MemberPartition, PartitionKey, PartitionRef, TopicInfo, TopicMeta

BROKER = Broker(1, "10.0.0.5", 8123)
PARTITION = PartitionRef(BROKER, "demo", 0)


@pytest.mark.parametrize("written", ["1:10.0.0.5:8123", "1:10.0.0.5: ", "1:10.0.0.5:"])
def test_broker(written: str) -> None:
    assert string_formats.parse_broker(written) == BROKER
    assert str(BROKER) == "1:10.0.0.5:8123"


def test_partition() -> None:
    assert string_formats.parse_partition("1:10.0.0.5:8123#demo:0") == PARTITION
    assert str(PARTITION) == "1:10.0.0.5:8123#demo:0"
    assert PARTITION.name == "1:0"


def test_subscription() -> None:
    written = "g1_10.0.0.9-77-1-2-Pull-2.5.0@g1#1:10.0.0.5:8123#demo:0"
    assert string_formats.parse_subscription(written) == PARTITION
    assert string_formats.format_subscription("g1_10.0.0.9-77-1-2-Pull-2.5.0", "g1", PARTITION) == written
    parsed = string_formats.parse_member_partition(written)
    assert parsed == MemberPartition("g1_10.0.0.9-77-1-2-Pull-2.5.0", "g1", PARTITION)
    assert str(parsed) == written
    assert string_formats.parse_member_partition("c@g#1:h: #demo:0", 8124).partition.broker.port == 8124


def test_failure() -> None:
    assert string_formats.parse_failure("411:1:10.0.0.5:8123#demo:0") == (411, PARTITION)
    assert string_formats.format_failure(411, PARTITION) == "411:1:10.0.0.5:8123#demo:0"


@pytest.mark.parametrize(
    ("written", "info"),
    [
        ("demo#1:3:1,2:3:1#1048576", TopicInfo("demo", ((1, 3, 1), (2, 3, 1)), 1 << 20)),
        ("demo#1:3:2#", TopicInfo("demo", ((1, 3, 2),), None)),
    ],
)
def test_topic(written: str, info: TopicInfo) -> None:
    assert string_formats.parse_topic_info(written) == info
    assert string_formats.format_topic_info(info) == written


def test_the_last_part_of_a_topic_may_be_missing() -> None:
    assert string_formats.parse_topic_info("demo#1:3:2") == TopicInfo("demo", ((1, 3, 2),), None)


@pytest.mark.parametrize("parse", [string_formats.parse_topic_info, string_formats.parse_topic_meta])
@pytest.mark.parametrize(
    "deployments", ["1:{m}:{n}:1", "1:1:1000000000:1", "1:-2:-3:1", "1:50000:1:1,2:50000:1:1,3:1:1:1", "1:" + "9" * 4000 + ":1:1"]
)
def test_more_partitions_than_a_cluster_can_have_are_refused(parse: Callable[[str], object], deployments: str) -> None:
    text = deployments.format(m=1000, n=1_000_000)
    if parse is string_formats.parse_topic_info:
        text = text.replace(":1,", ",").removesuffix(":1")
    with pytest.raises(RemoteProtocolError, match=r"at most 100000 are supported|is not a valid topic") as raised:
        parse(f"demo#{text}")
    assert len(str(raised.value)) < 5000


def test_a_large_cluster_is_accepted() -> None:
    brokers = ",".join(f"{broker}:100:10" for broker in range(1, 51))
    assert string_formats.parse_topic_info(f"demo#{brokers}").partition_count == 50_000


def test_condition() -> None:
    assert string_formats.format_condition("demo", ["t2", "t1"]) == "demo#t1,t2"
    assert string_formats.parse_condition("demo#t1,t2") == ("demo", frozenset({"t1", "t2"}))


@pytest.mark.parametrize("written", [" demo #t1, t2 ", "demo#,t2,,t1,", "demo#t1,t2,t1"])
def test_a_condition_may_have_blanks_and_repeated_types(written: str) -> None:
    assert string_formats.parse_condition(written) == ("demo", frozenset({"t1", "t2"}))


@pytest.mark.parametrize("written", ["", "demo", "demo#", "demo# , ", "#t1", " #t1", "demo#t1#t2", "t1,t2"])
def test_a_malformed_condition(written: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a valid filter"):
        string_formats.parse_condition(written)


@pytest.mark.parametrize(
    "written",
    [
        *("", "c@g", "c@g#", "c#1:h:1#demo:0", "@g#1:h:1#demo:0", "c@#1:h:1#demo:0", "c@g@h#1:h:1#demo:0", "c@g#1:h:1"),
        *("c@g#h:1#demo:0", "c@g#1:h:1#demo:x", "c@g#1:h:1#demo:0#", "c@g#1:h:99999#demo:0", "1:h:1#demo:0"),
    ],
)
def test_a_malformed_subscription(written: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is not a valid"):
        string_formats.parse_member_partition(written)


def test_partition_ids_of_several_stores() -> None:
    assert string_formats.partition_ids(3, 2) == [0, 1, 2, 10000, 10001, 10002]


PARSERS = [
    string_formats.parse_broker,
    string_formats.parse_partition,
    string_formats.parse_subscription,
    string_formats.parse_failure,
    string_formats.parse_topic_info,
    string_formats.parse_member_partition,
    string_formats.parse_condition,
]


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(written=st.one_of(st.text(max_size=30), st.text("0123456789:#,@a ", max_size=30)))
def test_nonsense_is_a_protocol_error(parse: Callable[[str], object], written: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        parse(written)


names = st.text("abcXYZ_019", min_size=1, max_size=8)
brokers = st.builds(Broker, st.integers(0, 2**31 - 1), names, st.integers(1, 65535))


@given(st.builds(PartitionRef, brokers, names, st.integers(0, 99_999)))
def test_partitions_round_trip(ref: PartitionRef) -> None:
    assert string_formats.parse_partition(str(ref)) == ref
    assert string_formats.parse_subscription(string_formats.format_subscription("c", "g", ref)) == ref
    assert string_formats.parse_failure(string_formats.format_failure(412, ref)) == (412, ref)


members = st.text("abcXYZ_019-.", min_size=1, max_size=12)


@given(st.builds(MemberPartition, members, members, st.builds(PartitionRef, brokers, names, st.integers(0, 99_999))))
def test_subscriptions_round_trip(held: MemberPartition) -> None:
    assert string_formats.parse_member_partition(str(held)) == held
    assert string_formats.parse_subscription(str(held)) == held.partition


@given(names, st.frozensets(names, min_size=1, max_size=5))
def test_conditions_round_trip(topic: str, types: frozenset[str]) -> None:
    assert string_formats.parse_condition(string_formats.format_condition(topic, types)) == (topic, types)


def test_topic_metadata_has_stores_first() -> None:
    meta = TopicMeta("demo", ((1, 2, 3, True), (2, 1, 3, False)))
    assert string_formats.parse_topic_meta("demo#1:2:3:1,2:1:3:0") == meta
    assert string_formats.format_topic_meta(meta) == "demo#1:2:3:1,2:1:3:0"


@given(
    st.dictionaries(
        st.builds(PartitionKey, st.integers(0, 99), names, st.integers(0, 99_999)), st.integers(0, 1 << 60), max_size=5
    )
)
def test_required_offsets_round_trip(offsets: dict[PartitionKey, int]) -> None:
    assert string_formats.parse_start_offsets(string_formats.format_start_offsets(offsets)) == offsets


def test_held_partitions_round_trip() -> None:
    refs = [PartitionRef(Broker(1, "h", 1), "demo", 0), PartitionRef(Broker(2, "h", 1), "demo", 10_000)]
    assert string_formats.format_held_partitions("demo", refs) == "demo#1:0,2:10000"
    assert string_formats.parse_held_partitions("demo#1:0,2:10000") == [ref.key for ref in refs]
    assert string_formats.parse_held_partitions("demo#") == []
