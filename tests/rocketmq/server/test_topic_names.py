"""The names of topics that have a meaning for clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.rocketmq.server import topic_names
from mqbridge.rocketmq.server.topic_names import (
    FIXED_NAMES,
    REPLY_TOPIC,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TRACE_TOPIC,
    dead_topic,
    is_made_by_listener,
    is_of_group,
    is_valid,
    retry_topic,
)
from tests.rocketmq.server.serving import serving


@given(st.text(max_size=20))
def test_topics_of_groups_have_one_name_in_the_cluster_and_back(group: str) -> None:
    for name in (retry_topic(group), dead_topic(group)):
        assert is_of_group(name)
        assert is_made_by_listener(name)
        stored = FIXED_NAMES.in_cluster(name)
        assert stored is not None
        assert FIXED_NAMES.for_clients(stored) == name
    assert FIXED_NAMES.in_cluster(retry_topic(group)) == "%retry%" + group, (
        "a broker does not take it for a retry topic of its own"
    )
    assert FIXED_NAMES.in_cluster(dead_topic(group)) == "%DLQ%" + group


def test_other_topics_follow_the_template() -> None:
    assert FIXED_NAMES.in_cluster("t") is None
    assert FIXED_NAMES.for_clients("t") is None
    assert FIXED_NAMES.in_cluster(TRACE_TOPIC) == FIXED_NAMES.for_clients(TRACE_TOPIC) == TRACE_TOPIC
    assert not is_of_group(TRACE_TOPIC)
    assert not is_made_by_listener("t")


@pytest.mark.parametrize(
    ("name", "valid"),
    [("t", True), ("x" * 127, True), ("x" * 128, False), ("", False), (TEMPLATE_TOPIC, False), (REPLY_TOPIC, False),
     ("SCHEDULE_TOPIC_XXXX", False), (retry_topic("g"), True), (TRACE_TOPIC, True)],
)  # fmt: skip
def test_names_that_clients_may_use(name: str, valid: bool) -> None:
    assert is_valid(name) == valid


async def test_system_topics_are_never_stored() -> None:
    assert {TEMPLATE_TOPIC, REPLY_TOPIC} < SYSTEM_TOPICS
    async with serving() as served:
        client = await served.connect()
        for name in sorted(SYSTEM_TOPICS):
            answer = await client.send(b"x", name)
            assert (answer.code, name in (answer.remark or "")) == (13, True)
        assert await served.listener.topics.names() == []


async def test_the_retry_topic_is_stored_under_its_own_name() -> None:
    async with serving(topics="app-{topic}") as served:
        client = await served.connect()
        await client.store(b"x", topic="app-t")
        await client.store(b"x", topic=topic_names.retry_topic("g"))
        assert len(await served.stored("t")) == 1
        assert len(await served.stored("%retry%g")) == 1
        assert sorted(await served.listener.topics.names()) == ["%RETRY%g", "app-t"]
