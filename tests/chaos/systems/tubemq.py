"""The clusters of TubeMQ: one for sources, one for targets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterator

from mqbridge.message import Position
from tests.chaos.judge import Stored
from tests.chaos.systems.system import System, address_of, new_group, writer_in
from tests.kit import java
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import BROKER_ID, TOKEN

INDEX_BYTES = 28
"""Amount by which one message increases a TubeMQ offset."""


class TubeMQSystem(System):
    """A TubeMQ Master and a Broker with its default memory store: it acknowledges messages before they are in a file."""

    name = kind = "tubemq"
    loses_memory = True

    def __init__(self) -> None:
        server = self._tubemq = self.server = TubeMQ(pool={})
        self.settings = {"masters": server.masters, "admin_url": server.admin_url, "admin_token": TOKEN}
        self.brokers, self.broker = [("127.0.0.1", server.broker_port)], server.broker
        self.directories, self.directory_processes = [address_of(server.masters)], [server.master]
        self.others = [address_of(server.admin_url), address_of(server.broker_admin_url)]

    def earlier(self, committed: Position, messages: int) -> Position:
        return (max(0, committed[0] - messages * INDEX_BYTES), 0)

    def message_count(self, topic: str) -> int:
        return self._tubemq.message_count(topic)

    def wait_stored(self, topic: str) -> None:
        self._tubemq.wait_stored(topic)

    @contextlib.asynccontextmanager
    async def group_paused(self, topic: str, group: str) -> AsyncIterator[None]:
        """Close the topic for consumers: the Master takes its partitions away from all groups."""
        async with self._switched_off(topic, "acceptSubscribe"):
            yield

    @contextlib.asynccontextmanager
    async def writes_refused(self, topic: str, *, partly: bool) -> AsyncIterator[None]:
        """Close the topic for producers."""
        async with self._switched_off(topic, "acceptPublish"):
            yield

    @contextlib.asynccontextmanager
    async def _switched_off(self, topic: str, setting: str) -> AsyncIterator[None]:
        await asyncio.to_thread(self._set, topic, setting, False)
        try:
            yield
        finally:
            await asyncio.to_thread(self._set, topic, setting, True)

    def _set(self, topic: str, setting: str, value: bool) -> None:
        tubemq = self._tubemq
        self.broker.wait_until(self._is_idle, "completing its configuration")
        tubemq.admin("admin_modify_topic_info", topicName=topic, brokerId=BROKER_ID, modifyUser="chaos", **{setting: value})
        tubemq.admin("admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="chaos")
        self.broker.wait_until(self._is_idle, f"changing {setting} of {topic}")

    def _is_idle(self) -> bool:
        """Return True if the Broker runs, and the Master has sent it all changes. Another change would be refused before."""
        (status,) = self._tubemq.admin("admin_query_broker_run_status", brokerId=BROKER_ID)["data"]
        return (status["runStatus"], status["subStatus"]) == ("running", "idle")

    def read(self, topic: str, idle_s: int) -> Iterator[Stored]:
        master = self.settings["masters"]
        for line in java.run("TubeConsume", master=master, topic=topic, group=new_group(), idle=idle_s)[:-1]:
            partition = int(line["partition"].rpartition(":")[2])
            yield Stored(partition, writer_in(line["attributes"] or ""), base64.b64decode(line["body"]))


class TubeMQTarget(TubeMQSystem):
    """The cluster of TubeMQ targets."""

    name = "tubemq_target"
