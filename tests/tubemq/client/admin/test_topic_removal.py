"""The deletion of a topic goes through the steps that the Master demands, from wherever an earlier one has ended."""

from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.tubemq.client.admin import topic_removal
from mqbridge.tubemq.client.admin.admin import Node
from mqbridge.tubemq.client.admin.topic_removal import DELETED, NORMAL, REMOVED, TopicRemovalAdmin


class ScriptedAdmin(TopicRemovalAdmin):
    """A Master with one record of the topic for each of two Brokers, of which `running` run."""

    def __init__(self, status: int, *, is_open: bool, running: frozenset[int] = frozenset({1, 2})) -> None:
        entry = {"topicStatusId": status, "acceptPublish": is_open, "acceptSubscribe": is_open, "numTopicStores": 1}
        self.configs: dict[int, dict[str, Any]] = {broker: entry | {"numPartitions": 1} for broker in (1, 2)}
        self.running, self.changes, self.forgets = running, list[tuple[int, str]](), True

    async def _topic_configs(self, topic: str) -> dict[int, dict[str, Any]]:
        return dict(self.configs)

    async def _running_brokers(self) -> set[int]:
        return set(self.running)

    async def brokers(self) -> list[Node]:
        return [Node(1, "http://one"), Node(2, "http://two")]

    async def _offsets(self, node: Node, **parameters: object) -> dict[str, dict[str, dict[int, int]]]:
        return {"g1": {"demo": {0: 28}}, "a.b": {"demo": {0: 28}}, "other": {"another": {0: 28}}, "g2": {"demo": {0: 0}}}

    async def _broker(self, node: Node, method: str, **parameters: object) -> dict[str, Any]:
        assert (method, parameters["topicName"], parameters["groupName"]) == ("admin_rmv_offset", "demo", "g1,g2")
        self.changes.append((node.id, "offsets"))
        return {}

    async def _accepts_messages(self, topic: str, partitions: int) -> bool:
        return True

    async def _change(self, method: str, **parameters: Any) -> None:
        broker, step = parameters["brokerId"], method.removeprefix("admin_").partition("_")[0]
        self.changes.append((broker, step))
        if step == "remove":
            self.configs[broker]["topicStatusId"] = REMOVED
        elif step == "reload" and self.forgets and self.configs[broker]["topicStatusId"] == REMOVED:
            del self.configs[broker]
        elif step == "add":
            self.configs[broker] = {"topicStatusId": NORMAL, "numTopicStores": 1, "numPartitions": parameters["numPartitions"]}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_removal, "OFFSETS_WRITTEN_S", 0.0)
    monkeypatch.setattr(topic_removal, "READY_POLL_S", 0.001)


@pytest.mark.parametrize(
    ("status", "is_open", "steps"),
    [
        (NORMAL, True, [["modify", "delete", "reload"], ["offsets"], ["remove"], ["reload"]]),
        (NORMAL, False, [["delete", "reload"], ["offsets"], ["remove"], ["reload"]]),
        (DELETED, False, [["reload"], ["offsets"], ["remove"], ["reload"]]),
        (REMOVED, False, [["reload"]]),
    ],
)
async def test_a_deletion_goes_on_where_an_earlier_one_has_ended(status: int, is_open: bool, steps: list[list[str]]) -> None:
    admin = ScriptedAdmin(status, is_open=is_open)
    await admin.delete("demo")
    assert admin.changes == [(broker, step) for phase in steps for broker in (1, 2) for step in phase]
    done = len(admin.changes)
    await admin.delete("demo")
    assert len(admin.changes) == done, "there is no topic any more"


async def test_nothing_changes_while_a_broker_is_down() -> None:
    admin = ScriptedAdmin(NORMAL, is_open=True, running=frozenset({2}))
    with pytest.raises(ClusterError, match="cannot be deleted while its Brokers 1 are down") as raised:
        await admin.delete("demo")
    assert raised.value.failure is Failure.RETRY
    assert admin.changes == []


async def test_a_deletion_that_a_broker_does_not_carry_out_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_removal, "READY_TIMEOUT_S", 0.02)
    admin = ScriptedAdmin(NORMAL, is_open=True)
    admin.forgets = False
    with pytest.raises(RequestTimeout, match="still being deleted"):
        await admin.delete("demo")


async def test_a_topic_is_created_after_its_deletion_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then its Brokers would accept messages, and delete them."""
    admin = ScriptedAdmin(REMOVED, is_open=False)
    polls = 0

    async def configs(topic: str) -> dict[int, dict[str, Any]]:
        nonlocal polls
        polls += 1
        if polls == 3:
            admin.configs.clear()
        return dict(admin.configs)

    monkeypatch.setattr(admin, "_topic_configs", configs)
    await admin.create("demo", 2)
    assert [change for change in admin.changes if change[1] == "add"] == [(1, "add"), (2, "add")]
