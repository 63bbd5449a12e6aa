"""Deletes topics with their messages, through the Master's web API.

The Master keeps a record of the topic for each of its Brokers. A record is closed for producers and consumers, then deleted, then
removed; the Broker deletes the data at its next heartbeat, and the Master forgets the record. Meanwhile the topic looks as if it
existed, and its Brokers accept messages that they are about to delete.

A Broker keeps the offsets of groups, and they would hold in a new topic of this name: a group would skip its first messages. They
can be deleted only while the topic exists, and only once they are on disk.
"""

import asyncio
import re
from collections.abc import Collection
from typing import Any

from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.net.http_client import reads_json
from mqbridge.tubemq.client.admin.admin import READY_POLL_S, READY_TIMEOUT_S, USER, Admin

NORMAL, DELETED, REMOVED = 0, 1, 2
"""States of a record (topicStatusId)."""
OFFSETS_WRITTEN_S = 6.0
"""After this time a Broker has written the offsets of groups to disk; it does so every 5 s (zkCommitPeriodMs)."""
_GROUP = re.compile(r"[a-zA-Z][\w-]+", re.ASCII)
"""Names of groups that the web APIs accept; the offsets of others cannot be deleted."""


class TopicRemovalAdmin(Admin):
    """The administration API, extended by the deletion of topics."""

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic, or add partitions; see `Admin.create`. A topic that is being deleted is created anew after that."""
        if REMOVED in {entry["topicStatusId"] for entry in (await self._topic_configs(topic)).values()}:
            await self._wait_until_removed(topic)
        await super().create(topic, partitions)

    @reads_json
    async def delete(self, topic: str) -> None:
        """Delete the topic; return when its Brokers have deleted the data. Does nothing if it does not exist.

        A deletion that was interrupted goes on. Raises ClusterError (RETRY) without a change while a Broker of the topic is down.
        """
        if not (configs := await self._topic_configs(topic)):
            return
        if down := sorted(configs.keys() - await self._running_brokers()):
            problem = f"topic {topic} cannot be deleted while its Brokers {', '.join(map(str, down))} are down"
            raise ClusterError(f"{problem}: start them, or retry later", Failure.RETRY)
        open_records = [broker for broker, entry in configs.items() if entry["topicStatusId"] != REMOVED]
        for broker in open_records:
            for method, parameters in _steps(configs[broker]):
                await self._change(method, topicName=topic, brokerId=broker, modifyUser=USER, **parameters)
            await self._change("admin_reload_broker_configure", brokerId=broker, modifyUser=USER)
        if open_records:
            await asyncio.sleep(OFFSETS_WRITTEN_S)
            await self._delete_offsets(topic, open_records)
        for broker in open_records:
            await self._change("admin_remove_topic_info", topicName=topic, brokerId=broker, modifyUser=USER)
        for broker in configs:
            await self._change("admin_reload_broker_configure", brokerId=broker, modifyUser=USER)
        await self._wait_until_removed(topic)

    async def _delete_offsets(self, topic: str, brokers: Collection[int]) -> None:
        """Delete what these Brokers have on disk of the offsets of all groups on the topic."""
        for node in await self.brokers():
            if node.id in brokers:
                offsets = await self._offsets(node, topicName=topic)
                groups = sorted(group for group, topics in offsets.items() if topic in topics and _GROUP.fullmatch(group))
                if groups:
                    await self._broker(node, "admin_rmv_offset", groupName=",".join(groups), topicName=topic, modifyUser=USER)

    async def _wait_until_removed(self, topic: str) -> None:
        """Wait until no Broker has data of the topic. Raises RequestTimeout."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while await self._topic_configs(topic):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError as error:
            problem = f"topic {topic} is still being deleted after {READY_TIMEOUT_S:g} s: check its Brokers"
            raise RequestTimeout(problem) from error


def _steps(entry: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return the methods, with parameters, that close and delete a record; the Master refuses those that change nothing."""
    steps: list[tuple[str, dict[str, str]]] = []
    if entry["acceptPublish"] or entry["acceptSubscribe"]:
        steps.append(("admin_modify_topic_info", {"acceptPublish": "false", "acceptSubscribe": "false"}))
    if entry["topicStatusId"] == NORMAL:
        steps.append(("admin_delete_topic_info", {}))
    return steps
