"""Requests of administration tools."""

import time
from typing import Any

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.server import tools as module
from mqbridge.rocketmq.server.support import NO_SETTINGS, NOT_MANAGED
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs, RuntimeInfo, TopicConfig, TopicConfigs
from mqbridge.rocketmq.wire.bodies.connections import ConsumerConnections, ProducerConnections
from mqbridge.rocketmq.wire.bodies.groups import FROM_FIRST, GroupList
from mqbridge.rocketmq.wire.bodies.offsets import ConsumerOffsets, ConsumeStats, ResetOffsets, TopicStats
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import TopicList
from mqbridge.rocketmq.wire.broker_settings import decode_settings
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import CreateTopicHeader, TopicHeader
from mqbridge.rocketmq.wire.headers.groups import (
    ConsumeDirectlyHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupConfigHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from tests.rocketmq.server.serving import GROUP, PULL_HELD, RawRemotingClient, bodies_of, next_of, serving, until

BROKER = "mqbridge-app"


async def create(client: RawRemotingClient, topic: str = "t", queues: int = 2, **fields: Any) -> Command:
    values = {"read_queue_nums": queues, "write_queue_nums": queues} | fields
    return await client.ask(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, **values))


# --- topics ---------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_created_grown_and_never_shrunk() -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await create(client, queues=2)).code == 0
        assert (await served.broker.readable_topic("t")).count == 2
        assert (await create(client, queues=2)).code == 0
        assert (await create(client, queues=3, perm=7, attributes="+message.type=NORMAL")).code == 0
        found = await served.listener.topics.find("t", fresh=True)
        assert found is not None
        assert found.count == 3
        answer = await create(client, queues=1)
        assert (answer.code, answer.remark) == (Status.SYSTEM_ERROR, "the topic has 3 queues, and cannot get fewer")


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "TBW102"}, {"topic": ""}, {"topic": "x" * 128}, {"topic": "%RETRY%g"}, {"topic": "%DLQ%g"},
        {"read_queue_nums": 1}, {"perm": 4}, {"perm": 2}, {"order": True}, {"attributes": "+message.type=FIFO"},
        {"attributes": "+cleanup.policy=COMPACTION"},
    ],
    ids=str,
)  # fmt: skip
async def test_topics_with_what_is_not_supported_are_refused(fields: dict[str, Any]) -> None:
    async with serving() as served:
        client = await served.connect()
        assert (await create(client, **fields)).code == Status.SYSTEM_ERROR
        assert await served.listener.topics.names() == []


@pytest.mark.parametrize(("manage", "code"), [(True, 0), (False, Status.NO_PERMISSION)])
async def test_topics_are_created_without_create_only_by_who_may_manage(manage: bool, code: int) -> None:
    async with serving(create_partitions=None, manage=manage) as served:
        client = await served.connect()
        answer = await create(client)
        assert (answer.code, NOT_MANAGED in (answer.remark or "")) == (code, not manage)
        assert await served.listener.topics.names() == (["t"] if manage else [])


@pytest.mark.parametrize("code", [Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV])
async def test_a_topic_is_deleted(code: int) -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        await served.create()
        await client.store(b"a")
        assert (await client.ask(code, TopicHeader("t"))).code == 0
        assert await served.listener.topics.names() == []
        assert served.broker.known_topic("t") is None
        assert (await client.send(b"b")).code == Status.TOPIC_NOT_EXIST, "no producer of it is open any more"
        assert (await client.send(b"b")).code == Status.TOPIC_NOT_EXIST
        assert (await client.ask(code, TopicHeader("t"))).code == 0, "it is deleted at the name server, too"


async def test_configurations_of_topics() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create("t", 3)
        await served.create("u")
        every = await client.ask(Code.GET_ALL_TOPIC_CONFIG)
        assert TopicConfigs.decode(every.body).topics == {"t": TopicConfig("t", 3, 3), "u": TopicConfig("u", 1, 1)}
        one = await client.ask(Code.GET_TOPIC_CONFIG, TopicHeader("t"))
        assert TopicConfig.decode(one.body) == TopicConfig("t", 3, 3)
        assert (await client.ask(Code.GET_TOPIC_CONFIG, TopicHeader("x"))).code == Status.TOPIC_NOT_EXIST


async def test_figures_of_a_topic() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", b"b")
        answer = await client.ask(Code.GET_TOPIC_STATS_INFO, TopicHeader("t"))
        stats = TopicStats.decode(answer.body).queues
        last = (await client.read(1))[0].store_timestamp
        assert stats[Queue("t", BROKER, 0)] == module.QueueStats(0, 2, last)
        assert stats[Queue("t", BROKER, 1)] == module.QueueStats(0, 0, 0)
        assert len(stats) == 2
        assert (await client.ask(Code.GET_TOPIC_STATS_INFO, TopicHeader("x"))).code == Status.TOPIC_NOT_EXIST


async def test_figures_without_a_time_that_is_not_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.0)
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a")
        answer = await client.ask(Code.GET_TOPIC_STATS_INFO, TopicHeader("t"))
        assert TopicStats.decode(answer.body).queues[Queue("t", BROKER, 0)] == module.QueueStats(0, 1, 0)


# --- groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_groups_of_a_topic_and_topics_of_a_group(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.store(b"a", topic="u")
        await client.commit(1, group="gone")
        await client.join("t")
        answer = await client.ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader("t"))
        assert GroupList.decode(answer.body).groups == ("g", "gone")
        answer = await client.ask(Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader("u"))
        assert GroupList.decode(answer.body).groups == ()
        answer = await client.ask(Code.QUERY_TOPICS_BY_CONSUMER, GroupConfigHeader("gone"))
        assert TopicList.decode(answer.body).topics == ("t",)
        answer = await client.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert GroupConfigs.decode(answer.body).groups == {name: GroupConfig(name) for name in ("g", "gone")}


async def test_the_retry_topic_is_a_topic_of_its_group() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create("%RETRY%g")
        answer = await client.ask(Code.QUERY_TOPICS_BY_CONSUMER, GroupConfigHeader(GROUP))
        assert TopicList.decode(answer.body).topics == ("%RETRY%g",)


async def test_groups_have_the_settings_of_their_clients() -> None:
    async with serving() as served:
        client = await served.connect()
        create_code = Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await client.ask(create_code, None, GroupConfig("g").encode())).code == 0
        assert (await client.ask(create_code, None, GroupConfig("g", retry_max_times=3).encode())).code == Status.SYSTEM_ERROR
        answer = await client.ask(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupConfigHeader("any"))
        assert GroupConfig.decode(answer.body) == GroupConfig("any")


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_group_without_consumers_is_deleted(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.store(b"a", topic="u")
        await client.commit(1)
        await client.commit(1, topic="u")
        await client.join("v")
        answer = await client.ask(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(GROUP))
        assert (answer.code, answer.remark) == (Status.SYSTEM_ERROR, "group g has consumers")
        await client.leave()
        assert (await client.ask(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(GROUP))).code == 0
        assert [await client.committed(), await client.committed("u")] == [None, None]


async def test_the_clients_of_groups() -> None:
    async with serving() as served:
        client, producer = await served.connect("1", "GO"), await served.connect("2")
        await client.join("t", expression="A", consume_from=FROM_FIRST)
        await producer.produce("p")
        answer = await client.ask(Code.GET_CONSUMER_CONNECTION_LIST, GroupHeader(GROUP))
        found = ConsumerConnections.decode(answer.body)
        assert found.connections == (module.ClientConnection("1", client.address, "GO", client.version),)
        assert [(each.topic, each.expression) for each in found.subscriptions] == [("t", "A")]
        assert (found.consume_type, found.message_model, found.consume_from) == ("CONSUME_PASSIVELY", "CLUSTERING", FROM_FIRST)
        answer = await client.ask(Code.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader("p"))
        expected = (module.ClientConnection("2", producer.address, "JAVA", producer.version),)
        assert ProducerConnections.decode(answer.body).connections == expected
        assert (await client.ask(Code.GET_CONSUMER_CONNECTION_LIST, GroupHeader("x"))).code == Status.CONSUMER_NOT_ONLINE
        assert (await client.ask(Code.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader("x"))).code == Status.SYSTEM_ERROR


@pytest.mark.parametrize("topic", ["t", None])
async def test_the_progress_of_a_group(topic: str | None) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", b"b", b"c")
        await client.commit(2)
        answer = await client.ask(Code.GET_CONSUME_STATS, ConsumeStatsHeader(GROUP, topic))
        offsets = ConsumeStats.decode(answer.body).offsets
        consumed_at = (await client.read(1))[0].store_timestamp
        assert offsets[Queue("t", BROKER, 0)] == module.ConsumeOffsets(3, 2, 2, consumed_at)
        assert offsets[Queue("t", BROKER, 1)] == module.ConsumeOffsets(0, 0, 0, 0)
        answer = await client.ask(Code.GET_ALL_CONSUMER_OFFSET)
        assert ConsumerOffsets.decode(answer.body).offsets == {("t", GROUP): {0: 2}}


async def test_the_progress_of_a_lane_is_its_newest_commit() -> None:
    async with serving(owns_groups=False) as served:
        client = await served.connect()
        await client.store(b"a", b"b")
        await client.join("t")
        await client.read_all(2, sys_flag=PULL_HELD)
        await client.commit(1)
        answer = await client.ask(Code.GET_CONSUME_STATS, ConsumeStatsHeader(GROUP, "t"))
        assert ConsumeStats.decode(answer.body).offsets[Queue("t", BROKER, 0)].consumer_offset == 1
        assert (await client.ask(Code.GET_CONSUME_STATS, ConsumeStatsHeader(GROUP, "x"))).code == Status.TOPIC_NOT_EXIST


# --- resets ---------------------------------------------------------------------------------------------------------------


async def reset(client: RawRemotingClient, time_ms: int = 0, **fields: Any) -> dict[int, int]:
    answer = await client.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader(GROUP, "t", time_ms, **fields))
    assert answer.code == 0, answer
    return {queue.id: offset for queue, offset in ResetOffsets.decode(answer.body).offsets.items()}


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_group_is_moved_to_a_time_or_an_offset(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client = await served.connect()
        await served.create(queues=2)
        await client.store(b"a", b"b", b"c")
        await client.store(b"d", queue=1)
        records = await client.read(0)
        assert await reset(client, -1) == {0: 3, 1: 1}
        assert [await client.committed(), await client.committed(queue=1)] == [3, 1]
        assert await reset(client, 0) == {0: 0, 1: 0}
        assert await reset(client, queue_id=0, offset=2) == {0: 2}
        assert await reset(client, queue_id=0, offset=99) == {0: 3}
        assert [await client.committed(), await client.committed(queue=1)] == [3, 0]
        assert await reset(client, -1, is_force=False) == {0: 3}, "offsets move backwards only"
        last = records[2].store_timestamp
        first = next(record.queue_offset for record in records if record.store_timestamp >= last)
        assert await reset(client, last, queue_id=0, is_force=False) == {0: first}
        assert await reset(client, round(time.time() * 1000) + 10_000, queue_id=1) == {1: 1}


async def test_resets_that_cannot_be_are_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        code = Code.INVOKE_BROKER_TO_RESET_OFFSET
        assert (await client.ask(code, ResetOffsetHeader(GROUP, "t", 0))).code == Status.TOPIC_NOT_EXIST
        await served.create()
        assert (await client.ask(code, ResetOffsetHeader(GROUP, "t", 0, True, 5, 0))).code == Status.INVALID_PARAMETER


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_pull_that_waits_is_told_that_its_group_was_moved(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups) as served:
        client, tool = await served.connect("1"), await served.connect("2")
        await client.store(b"a", b"b")
        await client.join("t")
        assert len(await client.read_all(2, sys_flag=PULL_HELD)) == 2
        await client.commit(2)
        waiting = client.start_pull(2, sys_flag=PULL_HELD)
        await until(lambda: served.server.pulls.all_of(GROUP, "t")[0]._waiting)
        await reset(tool, 0)
        moved = await client.answer(waiting)
        if moved.code == Status.PULL_NOT_FOUND:  # the lane has moved before the reset was done: the next pull is told
            moved = await client.pull(2, sys_flag=PULL_HELD)
        assert (moved.code, next_of(moved)) == (Status.PULL_OFFSET_MOVED, 0)
        assert (await client.commit(2)).code == 0, "the client does not know yet"
        assert await client.committed() == 0
        assert (await client.commit(0)).code == 0
        assert bodies_of(await client.read(0, sys_flag=PULL_HELD)) == [b"a", b"b"]
        await client.commit(1)
        assert await client.committed() == 1


# --- requests that are passed on ------------------------------------------------------------------------------------------


async def test_requests_are_passed_on_to_a_consumer() -> None:
    async with serving() as served:
        client, tool = await served.connect("1"), await served.connect("2")
        await client.join("t")
        asked = tool.start(Code.GET_CONSUMER_RUNNING_INFO, RunningInfoHeader(GROUP, "1", True))
        passed = await client.pushed(Code.GET_CONSUMER_RUNNING_INFO)
        assert RunningInfoHeader.decode(passed.ext) == RunningInfoHeader(GROUP, "1", True)
        client.write(passed.answer(0, {"a": "b"}, b"the state", "fine"))
        answer = await tool.answer(asked)
        assert (answer.code, answer.ext, answer.body, answer.remark) == (0, {"a": "b"}, b"the state", "fine")
        asked = tool.start(Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader(GROUP, "1", "id"), b"a record")
        passed = await client.pushed(Code.CONSUME_MESSAGE_DIRECTLY)
        assert passed.body == b"a record"
        client.write(passed.answer(1, remark="no"))
        assert (await tool.answer(asked)).code == 1


async def test_requests_to_a_consumer_that_is_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORWARD_S", 0.01)
    async with serving() as served:
        client, tool = await served.connect("1"), await served.connect("2")
        code, header = Code.GET_CONSUMER_RUNNING_INFO, RunningInfoHeader(GROUP, "1")
        assert (await tool.ask(code, header)).code == Status.SYSTEM_ERROR
        await client.join("t")
        assert (await tool.ask(code, RunningInfoHeader(GROUP, "3"))).code == Status.SYSTEM_ERROR
        assert (await tool.ask(code, header)).code == Status.CONSUME_MSG_TIMEOUT
        assert (await tool.ask(Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader(GROUP))).code == Status.SYSTEM_ERROR


# --- the broker -----------------------------------------------------------------------------------------------------------


async def test_figures_and_settings_of_the_broker() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"a", b"b")
        await client.read(0, max_msg_nums=1)
        values = RuntimeInfo.decode((await client.ask(Code.GET_BROKER_RUNTIME_INFO)).body).values
        assert (values["msgPutTotalTodayNow"], values["msgGetTotalTodayNow"]) == ("2", "1")
        assert values["brokerVersionDesc"].startswith("mqbridge ")
        settings = decode_settings((await client.ask(Code.GET_BROKER_CONFIG)).body)
        assert settings["brokerName"] == BROKER
        assert settings["maxMessageSize"] == str(4 << 20)
        assert settings["autoCreateTopicEnable"] == "true"
        answer = await client.ask(Code.UPDATE_BROKER_CONFIG, None, b"a=b")
        assert (answer.code, answer.remark) == (Status.NO_PERMISSION, NO_SETTINGS)


async def test_what_changes_is_refused_without_manage() -> None:
    async with serving(manage=False) as served:
        client = await served.connect()
        await client.store(b"a")
        await client.commit(1)
        for code, header in (
            (Code.DELETE_TOPIC_IN_BROKER, TopicHeader("t")),
            (Code.DELETE_TOPIC_IN_NAMESRV, TopicHeader("t")),
            (Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader(GROUP)),
            (Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader(GROUP, "t", 0)),
        ):
            answer = await client.ask(code, header)
            assert (answer.code, NOT_MANAGED in (answer.remark or "")) == (Status.NO_PERMISSION, True)
        assert (await create(client, "u")).code == 0, "clients may create topics here"
        assert await client.committed() == 1


async def test_a_message_of_another_system_has_a_time_in_the_figures() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        await served.append(Message(b"x", publish_time=1_800_000_000_000))
        answer = await client.ask(Code.GET_TOPIC_STATS_INFO, TopicHeader("t"))
        assert TopicStats.decode(answer.body).queues[Queue("t", BROKER, 0)].updated > 1_700_000_000_000
