"""What the support table says that differs over a backing, shown by clients: one function for each row, found by its feature."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

from mqbridge.adapter.cluster import Cluster
from mqbridge.listener.support import Backing, Support
from mqbridge.rocketmq.server.group_starts import TIMESTAMP_S
from mqbridge.rocketmq.server.support import BACKINGS, TABLE
from mqbridge.rocketmq.wire.bodies.groups import FROM_TIMESTAMP
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.ids import format_host
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import decode_records
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.server.serving import (
    PULL_FREE,
    PULL_HELD,
    RawRemotingClient,
    RocketMQServing,
    bodies_of,
    gateway,
    send_header,
)


class SharedBacking:
    """Gateways of one backing, each with one listener, and a topic."""

    def __init__(self, cluster: Cluster, backing: Backing, folder: Path, stack: AsyncExitStack) -> None:
        self.backing, self.topic, self.group = backing, f"t{uuid4().hex[:8]}", f"g{uuid4().hex[:8]}"
        self._cluster, self._folder, self._stack, self._count = cluster, folder, stack, 0

    async def open(self) -> RocketMQServing:
        """Start a gateway; it has a state file of its own."""
        self._count += 1
        opened = gateway(
            self._cluster,
            self._folder,
            f"gateway-{self._count}",
            owns_groups=self.backing.groups == "own",
            parking=f"mqbridge-{self.topic}",
            dead_letter_topic=f"mqbridge-dead-{self.topic}",
        )
        return await self._stack.enter_async_context(opened)


Show = Callable[[SharedBacking], Awaitable[None]]
SHOWN: dict[str, Show] = {}
"""How the difference of a row is shown, by its feature."""


def shows(feature: str) -> Callable[[Show], Show]:
    """Register the function that shows the difference of this row."""

    def register(show: Show) -> Show:
        assert feature not in SHOWN
        SHOWN[feature] = show
        return show

    return register


SHOWN_ELSEWHERE = {
    "Producers: answers": "test_sends",
    "Producers: bodies up to 4 MiB, properties up to 32 KiB": "test_sends",
    "Message ids": "test_lookups",
    "Retries with their delays": "test_send_backs",
    "Begin of a new group at the last message": "test_offsets",
    "Offsets of groups: reset by tools (`manage`)": "test_tools",
    "Topics: lists, routes, growth, auto-creation (`create`)": "test_tools",
}
"""Rows that differ in the same way over every backing, and the tests over the embedded log that show it."""


def differing(system: str) -> list[tuple[str, Backing]]:
    """Return the rows that differ over this system, with each backing of it, but for those that are shown elsewhere."""
    return [
        (row.feature, backing)
        for row in TABLE
        for backing in BACKINGS
        if backing.system == system and row.cell(backing).support is Support.DIFFERS and row.feature not in SHOWN_ELSEWHERE
    ]


async def show(feature: str, cluster: Cluster, backing: Backing, folder: Path) -> None:
    """Show the difference of a row."""
    async with AsyncExitStack() as stack:
        await SHOWN[feature](SharedBacking(cluster, backing, folder, stack))


@shows("Hosts of messages")
async def the_born_host_is_that_of_the_listener(backing: SharedBacking) -> None:
    served = await backing.open()
    client = await served.connect()
    await client.store(b"x", topic=backing.topic)
    (record,) = await client.read_all(1, backing.topic)
    listener = f"127.0.0.1:{served.listener.port.port}"
    assert (format_host(record.born_host), format_host(record.store_host)) == (listener, listener)
    assert client.address != listener


async def held_by(served: RocketMQServing, backing: SharedBacking) -> set[int]:
    topic = await served.broker.readable_topic(backing.topic)
    feeds = {queue: served.broker.feed_of(backing.group, topic, queue) for queue in topic.partitions}
    return {queue for queue, feed in feeds.items() if feed is not None and feed.is_held}


@shows("Groups that several gateways share")
async def gateways_share_the_queues_or_one_serves_a_group(backing: SharedBacking) -> None:
    one, two = await backing.open(), await backing.open()
    first, second = await one.connect("1"), await two.connect("2")
    await one.create(backing.topic, 2)
    for queue in (0, 1):
        await first.store(b"%d" % queue, topic=backing.topic, queue=queue)
    await first.join(backing.topic, group=backing.group)
    await second.join(backing.topic, group=backing.group)
    fields = {"consumer_group": backing.group, "sys_flag": PULL_HELD}
    if backing.backing.groups == "own":
        for client in (first, second):
            for queue in (0, 1):
                assert bodies_of(await client.read_all(1, backing.topic, queue, **fields)) == [b"%d" % queue]
        return
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not (len(await held_by(one, backing)) == len(await held_by(two, backing)) == 1):
            await asyncio.sleep(0.05)
    shares = [await held_by(served, backing) for served in (one, two)]
    assert shares[0] | shares[1] == {0, 1}
    for served, client in ((one, first), (two, second)):
        (queue,) = await held_by(served, backing)
        assert bodies_of(await client.read_all(1, backing.topic, queue, **fields)) == [b"%d" % queue]


@shows("Begin of a new group by time")
async def a_group_by_time_begins_half_an_hour_ago(backing: SharedBacking) -> None:
    from mqbridge.rocketmq.server import group_starts

    assert TIMESTAMP_S == 1800.0
    served = await backing.open()
    client = await served.connect()
    await client.store(b"1", b"2", b"3", topic=backing.topic)
    young, group_starts.YOUNG_MESSAGES = group_starts.YOUNG_MESSAGES, 0
    try:
        await client.join(backing.topic, group=backing.group, consume_from=FROM_TIMESTAMP)
        records = await read_shared(client, backing, 3)
    finally:
        group_starts.YOUNG_MESSAGES = young
    assert bodies_of(records) == [b"1", b"2", b"3"], "they are younger than half an hour"


async def read_shared(client: RawRemotingClient, backing: SharedBacking, count: int) -> list:
    return await client.read_all(count, backing.topic, consumer_group=backing.group, sys_flag=PULL_HELD)


@shows("Requests and replies")
async def replies_reach_clients_of_the_same_gateway(backing: SharedBacking) -> None:
    one, two = await backing.open(), await backing.open()
    asker, near, far = await one.connect("asker"), await one.connect("near"), await two.connect("far")
    await asker.produce()
    header = send_header("DefaultCluster_REPLY_TOPIC", properties=[(Name.REPLY_TO_CLIENT, "asker")])
    waiting = near.start(Code.SEND_REPLY_MESSAGE_V2, header, b"reply")
    push = await asker.pushed(Code.PUSH_REPLY_MESSAGE_TO_CLIENT)
    asker.write(push.answer())
    assert ((await near.answer(waiting)).code, push.body) == (Status.SUCCESS, b"reply")
    answer = await far.ask(Code.SEND_REPLY_MESSAGE_V2, header, b"reply")
    assert (answer.code, "is not connected to this gateway" in (answer.remark or "")) == (Status.SYSTEM_ERROR, True)


@shows("Queries by id and by key")
async def a_search_by_key_reads_the_messages_of_its_time(backing: SharedBacking) -> None:
    served = await backing.open()
    client = await served.connect()
    await client.store(b"x", topic=backing.topic, properties=[(Name.KEYS, "k")])
    (record,) = await client.read_all(1, backing.topic, sys_flag=PULL_FREE | PULL_HELD)
    stored_ms = record.store_timestamp

    async def search(begin: int, end: int) -> list[bytes]:
        answer = await client.ask(Code.QUERY_MESSAGE, QueryHeader(backing.topic, "k", 32, begin, end))
        return [] if answer.code == Status.QUERY_NOT_FOUND else bodies_of(decode_records(answer.body))

    assert await search(stored_ms - 60_000, stored_ms + 60_000) == [b"x"]
    assert await search(stored_ms + 1, stored_ms + 60_000) == []
    assert await search(0, stored_ms - 1) == []
