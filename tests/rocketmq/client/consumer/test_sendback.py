"""Sending a message back: the broker makes the copy, or the client sends one itself if the broker cannot."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.wire import ids, properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import SendBackHeader
from mqbridge.rocketmq.wire.record import Record
from tests.rocketmq.client.broker import Cluster, hangs_up, refuses, scripted_client, success

QUEUE = Queue("T", "broker-a", 1)
STORED = properties.encode([("KEYS", "k"), ("DELAY", "2"), ("UNIQ_KEY", "U1"), ("TRAN_MSG", "true"), ("mine", "ö")])


def record(**fields: Any) -> Record:
    return Record("T", b"body", STORED, physical_offset=4711, flag=3, **fields)


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    cluster.topics["%RETRY%G"] = {"broker-b": 1}
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


async def test_the_broker_makes_the_copy(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = success
    await SendBack(client, "G", max_redeliveries=5).redeliver(QUEUE, record(), 4)
    (command,) = cluster.requests_to["a:10911"]
    header = SendBackHeader.decode(command.ext)
    assert (header.offset, header.group, header.delay_level, header.max_reconsume_times, header.origin_topic) == (
        4711,
        "G",
        4,
        5,
        "T",
    )
    assert header.origin_msg_id == ids.offset_id(record().store_host, 4711)


async def test_a_dead_letter_has_a_level_of_its_own(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = success
    await SendBack(client, "G").move_to_dead_letters(QUEUE, record())
    assert SendBackHeader.decode(cluster.requests[Code.CONSUMER_SEND_MSG_BACK][0].ext).delay_level == -1


@pytest.mark.parametrize("answer", [refuses(Status.SYSTEM_ERROR), refuses(Status.NO_PERMISSION), hangs_up])
async def test_otherwise_a_copy_is_sent_to_the_retry_topic(cluster: Cluster, client: ClusterClient, answer: Any) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = answer
    await SendBack(client, "G").redeliver(QUEUE, record(reconsume_times=2))
    (header,) = cluster.headers(Code.SEND_MESSAGE_V2)
    assert (header.topic, header.reconsume_times, header.max_reconsume_times, header.flag) == ("%RETRY%G", 3, 16, 3)
    ((body, stored),) = cluster.stored["b:10911", 0]
    pairs = [("KEYS", "k"), ("UNIQ_KEY", "U1"), ("mine", "ö"), ("RETRY_TOPIC", "T"), ("ORIGIN_MESSAGE_ID", "U1"), ("DELAY", "5")]
    assert (body, properties.decode(stored.encode())) == (b"body", pairs)


async def test_a_copy_of_a_copy_keeps_where_it_came_from(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = refuses(Status.SYSTEM_ERROR)
    again = record()
    again.properties = properties.encode([("RETRY_TOPIC", "first"), ("ORIGIN_MESSAGE_ID", "O1")])
    await SendBack(client, "G").redeliver(Queue("%RETRY%G", "broker-a", 0), again, 7)
    ((_, stored),) = cluster.stored["b:10911", 0]
    assert dict(properties.decode(stored.encode())) == {"RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "O1", "DELAY": "7"}


async def test_a_dead_copy_has_been_delivered_too_often(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = refuses(Status.SYSTEM_ERROR)
    await SendBack(client, "G", max_redeliveries=3).move_to_dead_letters(QUEUE, record())
    (header,) = cluster.headers(Code.SEND_MESSAGE_V2)
    assert (header.reconsume_times, header.max_reconsume_times) == (4, 3)
    assert "DELAY" not in dict(properties.decode(header.properties.encode()))


async def test_without_a_retry_topic_it_fails(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.CONSUMER_SEND_MSG_BACK] = refuses(Status.SYSTEM_ERROR)
    with pytest.raises(ClusterError, match="%RETRY%H"):
        await SendBack(client, "H").redeliver(QUEUE, record())
