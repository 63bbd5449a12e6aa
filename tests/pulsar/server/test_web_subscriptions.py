"""Subscriptions, statistics and messages of the web side."""

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.adapter.topics import Bounds
from mqbridge.message import Message, Position, Unit
from mqbridge.pulsar.server.message_ids import DUE_LEDGER
from mqbridge.pulsar.server.web.positions import position_after
from mqbridge.pulsar.server.web.served import ConsumerView, ProducerView, SubscriptionView
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.pulsar.server.web_bench import BASE, WebBench, batch_entry, web_bench

CONSUMER = ConsumerView("c", "127.0.0.1:1", 10, 3, 0.0)


@pytest_asyncio.fixture(params=["backing", "own"])
async def web(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WebBench]:
    async with web_bench(tmp_path, request.param) as bench:
        await bench.call("PUT", "t", status=204)
        yield bench


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % index) for index in range(count)]


async def test_subscriptions_are_created_at_the_ends_and_at_a_message(web: WebBench) -> None:
    await web.send("t", *numbered(5))
    await web.call("PUT", "t/subscription/end", status=204)
    await web.call("PUT", "t/subscription/end2", "latest", status=204)
    await web.call("PUT", "t/subscription/begin", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}, status=204)
    await web.call("PUT", "t/subscription/middle", {"ledgerId": 1, "entryId": 3, "partitionIndex": -1}, status=204)
    assert await web.call("GET", "t/subscriptions") == ["begin", "end", "end2", "middle"]
    found = [await web.committed("t", name) for name in ("end", "end2", "begin", "middle")]
    assert found == [{0: 5}, {0: 5}, {0: 0}, {0: 3}]
    await web.reason("PUT", "t/subscription/end", status=409)
    await web.reason("PUT", "t/subscription/bad", "garbage", status=400)
    await web.reason("PUT", "t/subscription/bad", {"ledgerId": "x"}, status=400)


async def test_a_subscription_is_in_all_partitions(web: WebBench) -> None:
    await web.call("PUT", "parts/partitions", 2, status=204)
    await web.send("parts", *numbered(3), partition=1)
    await web.call("PUT", "parts/subscription/s", "latest", status=204)
    assert await web.committed("parts", "s") == {0: 0, 1: 3}
    assert await web.call("GET", "parts-partition-1/subscriptions") == ["s"]
    await web.reason("PUT", "parts-partition-1/subscription/other", status=412)
    await web.reason("DELETE", "parts-partition-1/subscription/s", status=412)
    await web.reason("POST", "parts/subscription/s/skip/1", status=405)
    await web.reason("POST", "parts/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 1}, status=405)
    await web.call("POST", "parts/subscription/s/resetcursor", "earliest", status=204)
    assert await web.committed("parts", "s") == {0: 0, 1: 0}
    await web.call("POST", "parts-partition-1/subscription/s/skip/2", status=204)
    assert await web.committed("parts", "s") == {0: 0, 1: 2}
    await web.call("POST", "parts/subscription/s/skip_all", status=204)
    assert await web.committed("parts", "s") == {0: 0, 1: 3}


async def test_creating_a_subscription_creates_the_topic(web: WebBench) -> None:
    await web.call("PUT", "new/subscription/s", status=204)
    assert await web.call("GET", "new/subscriptions") == ["s"]


async def test_names_of_subscriptions_are_decoded_twice(web: WebBench) -> None:
    await web.call("PUT", "t/subscription/a%252Fb%2520c", status=204)
    assert await web.call("GET", "t/subscriptions") == ["a/b c"]
    await web.call("DELETE", "t/subscription/a%252Fb+c", status=204)
    assert await web.call("GET", "t/subscriptions") == []


async def test_a_subscription_with_consumers_is_deleted_by_force_only(web: WebBench) -> None:
    await web.call("PUT", "t/subscription/s", status=204)
    web.broker.consuming["t", 0] = {"s": SubscriptionView("Exclusive", [CONSUMER], True)}
    await web.reason("DELETE", "t/subscription/s", status=412)
    await web.call("DELETE", "t/subscription/s?force=true", status=204)
    assert web.broker.disconnected == [("t", 0, "s")]
    await web.reason("DELETE", "t/subscription/s", status=404)


async def test_moving_a_subscription_closes_its_consumers(web: WebBench) -> None:
    await web.send("t", *numbered(10))
    await web.call("PUT", "t/subscription/s", "earliest", status=204)
    web.broker.consuming["t", 0] = {"s": SubscriptionView("Exclusive", [CONSUMER], True)}
    await web.call("POST", "t/subscription/s/skip/4", status=204)
    assert web.broker.disconnected == [], "as at a broker: what they have is acknowledged"
    assert await web.committed("t", "s") == {0: 4}
    await web.call("POST", "t/subscription/s/skip/100", status=204)
    assert await web.committed("t", "s") == {0: 10}
    await web.call("POST", "t/subscription/s/resetcursor/0", status=204)
    assert web.broker.disconnected == [("t", 0, "s")]
    assert await web.committed("t", "s") == {0: 0}
    for body, expected in [
        ({"ledgerId": 1, "entryId": 6}, 6),
        ({"ledgerId": 1, "entryId": 6, "batchIndex": 1}, 7),
        ({"ledgerId": 1, "entryId": 6, "excluded": True}, 7),
        ({"ledgerId": 1, "entryId": 1000}, 10),
        ({"ledgerId": 0, "entryId": 3}, 0),
        ({"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}, 10),
    ]:
        await web.call("POST", "t/subscription/s/resetcursor", body, status=204)
        assert await web.committed("t", "s") == {0: expected}, body
    parked = {"ledgerId": DUE_LEDGER, "entryId": 3}  # the end would skip what is not delivered
    await web.call("POST", "t/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 6}, status=204)
    await web.reason("POST", "t/subscription/s/resetcursor", parked, status=412)
    assert await web.committed("t", "s") == {0: 6}
    for path in ("skip/1", "skip_all", "resetcursor/0", "expireMessages/1"):
        await web.reason("POST", f"t/subscription/missing/{path}", status=404)
    await web.reason("POST", "t/subscription/s/skip/-1", status=400)
    await web.reason("POST", "t/subscription/s/skip/9999999999999999999999", status=400)


async def test_old_messages_expire(web: WebBench) -> None:
    await web.send("t", *numbered(3))
    await web.call("PUT", "t/subscription/s", "earliest", status=204)
    await web.reason("POST", "t/subscription/s/expireMessages/3600", status=409)
    assert await web.committed("t", "s") == {0: 0}
    await web.call("POST", "t/subscription/s/expireMessages/0", status=204)
    assert await web.committed("t", "s") == {0: 3}
    await web.call("POST", "t/all_subscription/expireMessages/0", status=204)


async def test_statistics_tell_backlog_and_clients(web: WebBench) -> None:
    await web.send("t", batch_entry(b"a", b"b", b"c"), Message(b"d"))
    await web.call("PUT", "t/subscription/s", "earliest", status=204)
    await web.call("POST", "t/subscription/s/skip/1", status=204)
    web.broker.producing["t", 0] = [ProducerView("p", "127.0.0.1:2", 4, 40, 1.5)]
    web.broker.consuming["t", 0] = {
        "s": SubscriptionView("Shared", [CONSUMER], True),
        "reader": SubscriptionView("Exclusive", [CONSUMER], False),
    }
    stats = await web.call("GET", "t/stats")
    assert (stats["msgInCounter"], stats["bytesInCounter"], stats["averageMsgSize"]) == (4, 40, 10.0)
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["address"]) == ("p", "/127.0.0.1:2")
    assert publisher["connectedSince"] == "1970-01-01T00:00:01.500Z"
    durable, reader = stats["subscriptions"]["s"], stats["subscriptions"]["reader"]
    assert (durable["msgBacklog"], durable["type"], durable["isDurable"], durable["unackedMessages"]) == (3, "Shared", True, 3)
    assert durable["consumers"][0]["availablePermits"] == 10
    assert (reader["msgBacklog"], reader["isDurable"]) == (-1, False)
    assert durable["subscriptionProperties"] == {}
    assert reader["subscriptionProperties"]
    internal = await web.call("GET", "t/internalStats")
    assert (internal["lastConfirmedEntry"], internal["numberOfEntries"]) == ("1:3", 4)
    assert internal["cursors"]["s"]["markDeletePosition"] == "1:0"


async def test_statistics_of_partitions_are_summed(web: WebBench) -> None:
    await web.call("PUT", "parts/partitions", 2, status=204)
    await web.send("parts", *numbered(3), partition=0)
    await web.send("parts", *numbered(2), partition=1)
    await web.call("PUT", "parts/subscription/s", "earliest", status=204)
    for partition in range(2):
        web.broker.producing["parts", partition] = [ProducerView("p", "127.0.0.1:2", 2, 20, 0.0)]
    web.broker.consuming["parts", 1] = {"s": SubscriptionView("Failover", [CONSUMER], True)}
    stats = await web.call("GET", "parts/partitioned-stats")
    assert (stats["msgInCounter"], stats["metadata"]["partitions"]) == (4, 2)
    assert (stats["subscriptions"]["s"]["msgBacklog"], stats["subscriptions"]["s"]["type"]) == (5, "Failover")
    assert len(stats["subscriptions"]["s"]["consumers"]) == 1
    first = stats["partitions"]["persistent://public/default/parts-partition-0"]
    assert first == await web.call("GET", "parts-partition-0/stats")
    assert "partitions" not in await web.call("GET", "parts/partitioned-stats?perPartition=false")
    internal = await web.call("GET", "parts/partitioned-internalStats")
    assert internal["partitions"]["persistent://public/default/parts-partition-1"]["lastConfirmedEntry"] == "1:1"


async def test_the_last_id_is_that_of_the_last_entry(web: WebBench) -> None:
    empty = {"ledgerId": 1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert await web.call("GET", "t/lastMessageId") == empty
    await web.send("t", Message(b"a"), batch_entry(b"b", b"c", b"d"))
    assert await web.call("GET", "t/lastMessageId") == empty | {"entryId": 1}
    assert await web.call("GET", "t/messageid/0") == empty | {"entryId": 0}
    await web.call("PUT", "parts/partitions", 2, status=204)
    assert await web.call("GET", "parts-partition-1/lastMessageId") == empty | {"partitionIndex": 1}


async def test_entries_are_shown_as_a_broker_shows_them(web: WebBench) -> None:
    message = Message(b"one", (("k", "v"),), key="kä\n", publish_time=5000)
    await web.send("t", message, batch_entry(b"two", b"three"), Message(b"four", key="kä"))
    await web.call("PUT", "t/subscription/s", "earliest", status=204)
    first = await web.client.get(f"{BASE}/t/subscription/s/position/1")
    assert (first.content, first.headers["X-Pulsar-Message-ID"]) == (b"one", "1:0")
    assert json.loads(first.headers["X-Pulsar-PROPERTY"]) == {"k": "v"}
    assert "X-Pulsar-partition-key" not in first.headers
    second = await web.client.get(f"{BASE}/t/subscription/s/position/2")
    assert (second.headers["X-Pulsar-Message-ID"], second.headers["X-Pulsar-num-batch-message"]) == ("1:1", "2")
    assert second.headers["X-Pulsar-producer-name"] == "sdk"
    assert struct.unpack_from(">I", second.content)[0] < len(second.content)
    assert b"two" in second.content
    third = await web.client.get(f"{BASE}/t/subscription/s/position/3")
    assert (third.content, third.headers["X-Pulsar-Message-ID"]) == (b"four", "1:3")
    assert third.headers["X-Pulsar-partition-key"] == "kä"
    await web.reason("GET", "t/subscription/s/position/4", status=404)
    await web.reason("GET", "t/subscription/s/position/0", status=400)
    await web.reason("GET", "t/subscription/missing/position/1", status=404)
    assert await web.committed("t", "s") == {0: 0}


async def test_a_message_is_examined_from_either_end(web: WebBench) -> None:
    await web.reason("GET", "t/examinemessage", status=412)
    await web.send("t", *numbered(3))
    for query, payload in [
        ("", b"2"),
        ("?initialPosition=latest&messagePosition=1", b"2"),
        ("?initialPosition=earliest&messagePosition=2", b"1"),
        ("?initialPosition=earliest&messagePosition=9", b"2"),
    ]:
        assert (await web.client.get(f"{BASE}/t/examinemessage{query}")).content == payload
    await web.reason("GET", "t/examinemessage?initialPosition=latest&messagePosition=2", status=412)


class Uncounted(OffsetNumbering):
    """Numbers that do not count messages."""

    dense = False


async def test_messages_that_cannot_be_counted_are_not_skipped(tmp_path: Path) -> None:
    async with web_bench(tmp_path, numbering=Uncounted()) as web:
        await web.call("PUT", "t", status=204)
        await web.send("t", *numbered(3))
        await web.call("PUT", "t/subscription/begin", "earliest", status=204)
        await web.call("PUT", "t/subscription/end", status=204)
        await web.reason("POST", "t/subscription/begin/skip/1", status=412)
        found = (await web.call("GET", "t/stats"))["subscriptions"]
        assert {name: each["msgBacklog"] for name, each in found.items()} == {"begin": -1, "end": 0}
        await web.call("POST", "t/subscription/begin/skip_all", status=204)
        assert await web.committed("t", "begin") == {0: 3}


class Unknown(Uncounted):
    """Numbers of a cluster that does not know the positions of an empty partition."""

    def number(self, position: Position) -> int:
        raise ValueError(f"{position} has no number")


async def test_the_ids_of_an_empty_partition_may_be_unknown(tmp_path: Path) -> None:
    async with web_bench(tmp_path, numbering=Unknown()) as web:
        await web.call("PUT", "t", status=204)
        await web.call("PUT", "t/subscription/s", status=204)
        last = await web.call("GET", "t/lastMessageId")
        assert (last["ledgerId"], last["entryId"]) == (-1, -1)
        internal = await web.call("GET", "t/internalStats")
        assert (internal["lastConfirmedEntry"], internal["cursors"]["s"]["markDeletePosition"]) == ("-1:-1", "-1:-1")


async def test_odd_metadata_is_shown(tmp_path: Path) -> None:
    metadata = MessageMetadata(producer_name="a\nb", sequence_id=0, publish_time=(1 << 64) - 1, partition_key="k" * 100_000)
    async with web_bench(tmp_path) as web:
        await web.call("PUT", "t", status=204)
        await web.send("t", Unit(stored_entry(metadata, b"x"), 1, 1), Unit(b"damaged", 1, 1))
        shown = await web.client.get(f"{BASE}/t/examinemessage?initialPosition=earliest")
        assert (shown.status_code, shown.content) == (200, b"x")
        assert not shown.headers.keys() & {"x-pulsar-producer-name", "x-pulsar-partition-key"}
        assert "cannot be read" in await web.reason("GET", "t/examinemessage?initialPosition=latest", status=412)


def test_offsets_without_messages_are_not_skipped() -> None:
    bounds = Bounds((0,), (20,), left_out=((5, 10), (12, 15)))
    found = [position_after(bounds, (3,), count) for count in range(8)]
    assert found == [(3,), (4,), (5,), (11,), (12,), (16,), (17,), (18,)]
    assert position_after(bounds, (3,), 100) == (20,)
    assert position_after(bounds, (7,), 0) == (10,)
