"""A consumer group of the gateway and Java push consumers: after each rebalance every queue has one owner; no message is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError
from mqbridge.message import Batch, Message, Share, split_origin
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.running_info import RunningInfo
from mqbridge.rocketmq.wire.codes import Code
from tests.e2e.sides import Side, side
from tests.e2e.support import opened
from tests.kit import java
from tests.kit.gateway import GatewayProcess
from tests.kit.java import JavaProgram
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.rocketmq import POLL_S, Clients, body, config, connected, everything, make_group

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(400)]

QUEUES = 8
REST_S = 0.5
"""The assignment of queues must stay the same for this long."""
PAUSE_S = 0.05
"""Pause between two messages of a queue."""
HOLD_MS = 200
"""Delay between printing a message and committing its offset: a killed Java consumer has printed all that it committed."""
THREADS = 64
ONE_SECOND = 1
GATEWAY = "gateway"
BROKER = "broker-a"


class Group:
    """A topic, its group, the running members, and the messages that Java consumed."""

    def __init__(self, rocket: Side, pulsar: Side, client: ClusterClient, topic: str, group: str, folder: Path) -> None:
        self.topic, self.group, self.target = topic, group, pulsar.take_topic(QUEUES)
        self.config = config(rocket, topic, group, (pulsar, self.target))
        self.gateway: GatewayProcess | None = None
        self.java_members: dict[str, JavaProgram] = {}
        self.former_java_members: list[JavaProgram] = []
        self._rocket, self._client, self._folder = rocket, client, folder
        self._stack = contextlib.ExitStack()

    async def step(self, step: str) -> None:
        """Run one step: `+ NAME` joins, `~ NAME` joins and is later closed properly, `- gateway` leaves, `! NAME` is killed.

        NAME is `gateway`, or a version of the Java client.
        """
        operation, name = step.split()
        if (operation, name) == ("+", GATEWAY):
            self.gateway = self._stack.enter_context(GatewayProcess(self.config, self._folder))
        elif operation in "+~":
            self.join(name, idle=0, until=str(self._leave(name)))
        elif name != GATEWAY:
            self.java_members[name].kill()
            self.former_java_members.append(self.java_members.pop(name))
        else:
            gateway, self.gateway = self.gateway, None
            assert gateway is not None
            if operation == "-":
                assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
            else:
                gateway.kill()

    def _leave(self, name: str) -> Path:
        """Return the file whose creation makes a Java member leave."""
        return self._folder / f"{name}.leave"

    async def leave(self, name: str) -> None:
        """Make a Java member leave the group and end, and wait for it."""
        self._leave(name).touch()
        await asyncio.to_thread(self.java_members[name].wait)
        self.former_java_members.append(self.java_members.pop(name))

    def join(self, name: str, **options: Any) -> None:
        """Start a Java member."""
        server = self._rocket.server
        assert isinstance(server, RocketMQ)
        self.java_members[name] = self._stack.enter_context(
            java.spawn(
                "RocketConsume", name_servers=server.name_server, topic=self.topic, group=self.group, client=name,
                hold=HOLD_MS, threads=THREADS, **options,
            )
        )  # fmt: skip

    async def owners(self) -> dict[str, set[str]]:
        """Return the owner of every queue, from the gateway's page and from the reports of the Java clients."""
        found: dict[str, set[str]] = {}
        if self.gateway is not None:
            lanes = (await asyncio.to_thread(self.gateway.route)).get("lanes", {})
            queues = {lane.rpartition("/")[2] for lane in lanes if "%" not in lane}
            found[GATEWAY] = queues
        found |= {member: {f"{one.broker}:{one.id}" for one in queues} for member, queues in (await self.held("JAVA")).items()}
        return found

    async def held(self, language: str, topic: str | None = None) -> dict[str, list[Queue]]:
        """Return the queues of a topic that members report, by client id."""
        found = {}
        known = await self._client.groups.consumers(self.group)
        for member in known.connections if known else ():
            if member.language == language:
                ext = {"consumerGroup": self.group, "clientId": member.client_id, "jstackEnable": "false"}
                address = (await self._client.admin.masters())[BROKER]
                answer = await self._client.request(address, Code.GET_CONSUMER_RUNNING_INFO, ext)
                info = RunningInfo.decode(answer.body)
                wanted = topic or self.topic
                found[member.client_id] = [
                    one for one, state in info.queues.items() if one.topic == wanted and not state["droped"]
                ]
        return found

    async def at_rest(self) -> None:
        """Wait until the members divide the queues evenly, each queue has one owner, and nothing changes for REST_S."""
        deadline = time.monotonic() + SERVER_PATIENCE_S
        since, before = time.monotonic(), None
        while True:
            try:
                owners = await self.owners()
            except ClusterError as error:  # a member that is leaving does not answer
                owners = {str(error): set()}
            if owners != before:
                since, before = time.monotonic(), owners
            if self._divided(owners) and time.monotonic() - since > REST_S:
                return
            running = self.gateway is None or self.gateway.process.poll() is None
            situation = f"{owners}\n{self.gateway.log if self.gateway else ''}"
            assert running, situation
            assert time.monotonic() < deadline, situation
            await asyncio.sleep(POLL_S)

    def _divided(self, owners: dict[str, set[str]]) -> bool:
        sizes = sorted(map(len, owners.values()))
        count = len(self.java_members) + (self.gateway is not None)
        once = sum(sizes) == QUEUES == len(set().union(*owners.values()))
        return len(owners) == count and once and sizes[-1] - sizes[0] <= 1

    async def read_to_end(self, topic: str, queues: int) -> None:
        """Wait until the group has consumed everything."""
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while True:
            all_queues = [Queue(topic, BROKER, number) for number in range(queues)]
            ends = await asyncio.gather(*(self._client.positions.next(queue) for queue in all_queues))
            reached = await asyncio.gather(*(self._client.positions.committed(queue, self.group) for queue in all_queues))
            if all(end == offset or (end == 0 and offset is None) for end, offset in zip(ends, reached, strict=True)):
                return
            assert time.monotonic() < deadline, f"{topic}: {reached} of {ends}\n{self.gateway.log if self.gateway else ''}"
            await asyncio.sleep(POLL_S)

    def consumed(self) -> list[dict[str, Any]]:
        """Return the lines of all messages that the Java consumers printed."""
        return [
            line for one in (*self.java_members.values(), *self.former_java_members) for line in one.lines() if "body" in line
        ]

    def close(self) -> None:
        self._stack.close()


@contextlib.asynccontextmanager
async def shared(request: pytest.FixtureRequest, folder: Path, retry_queues: int = 1) -> AsyncIterator[Group]:
    rocket, pulsar = side("rocketmq", request), side("pulsar", request)
    rocketmq = rocket.server
    assert isinstance(rocketmq, RocketMQ)
    assert isinstance(pulsar.server, Pulsar)
    group = await make_group(rocketmq, retry_queues=retry_queues)
    async with connected(rocketmq) as client:
        members = Group(rocket, pulsar, client, rocketmq.take_topic(QUEUES), group, folder)
        try:
            yield members
        finally:
            members.close()


class Sending:
    """Sends messages to every queue, one after the other, until `stop`."""

    def __init__(self, rocket: Side, topic: str) -> None:
        self.sent: list[bytes] = []
        self._ending = asyncio.Event()
        self._task = spawn(self._run(rocket, topic), "sending")

    async def _run(self, rocket: Side, topic: str) -> None:
        async with opened(rocket.system, rocket.settings) as cluster:
            outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
            for number in itertools.count():
                if self._ending.is_set():
                    break
                bodies = [b"%d/%d" % (queue, number) for queue in range(QUEUES)]
                receipts = await asyncio.gather(
                    *(outbound.send(n, Share(Batch.of([Message(one)]))) for n, one in enumerate(bodies))
                )
                assert not any(receipt.failures for receipt in receipts)
                self.sent += bodies
                await asyncio.sleep(PAUSE_S)
            await outbound.close()

    async def stop(self) -> None:
        self._ending.set()
        await self._task


@pytest.mark.parametrize(
    "steps",
    [
        ["+ gateway", "+ 5.3.3", "~ 4.9.8", "! 5.3.3", "- gateway", "+ gateway"],
        pytest.param(["+ 4.9.8", "+ gateway", "! gateway", "+ gateway", "+ 5.3.3", "! 4.9.8"], marks=pytest.mark.thorough),
    ],
    ids=["the gateway first", "Java first"],
)
async def test_members_join_and_leave(steps: Sequence[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async with shared(request, tmp_path) as group:
        sending = Sending(side("rocketmq", request), group.topic)
        try:
            for step in steps:
                await group.step(step)
                await group.at_rest()
            await sending.stop()
        finally:
            await cancel(sending._task)
        for name in list(group.java_members):
            if f"~ {name}" in steps:
                await group.leave(name)
            else:
                await group.step(f"! {name}")
        await group.at_rest()
        await group.read_to_end(group.topic, QUEUES)
        await group.step("- gateway")

        theirs = {body(line) for line in group.consumed()}
        ours = {m.payload for messages in await everything(side("pulsar", request), group.target, QUEUES) for m in messages}
        assert theirs
        assert ours
        missing = set(sending.sent) - theirs - ours
        assert not missing, f"{len(missing)} of {len(sending.sent)} were lost: {sorted(missing)[:20]}"


@pytest.mark.thorough
@Clients
async def test_the_gateway_receives_messages_that_java_sends_back(
    client: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    rocket = side("rocketmq", request)
    async with shared(request, tmp_path, retry_queues=2) as group:
        retries = f"%RETRY%{group.group}"
        await group.step("+ gateway")
        group.join(client, fail=1, retry_level=ONE_SECOND, idle=0)
        await group.at_rest()
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while [len(queues) for who in ("JAVA", "PYTHON") for queues in (await group.held(who, retries)).values()] != [1, 1]:
            assert time.monotonic() < deadline, "the retry queues were not divided"
            await asyncio.sleep(POLL_S)

        sent = {b"%d/%d" % (queue, n) for queue in range(QUEUES) for n in range(10)}
        async with opened(rocket.system, rocket.settings) as cluster:
            outbound = await cluster.outbound(OutboundSpec(group.topic, stamp_origin=False))
            for queue in range(QUEUES):
                messages = [Message(b"%d/%d" % (queue, n)) for n in range(10)]
                assert not (await outbound.send(queue, Share(Batch.of(messages)))).failures
            await outbound.close()
        await group.read_to_end(group.topic, QUEUES)
        refused = {body(line) for line in group.consumed() if not line["accepted"]}
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while await asyncio.to_thread(_count, rocket, retries) < len(refused):
            assert time.monotonic() < deadline
            await asyncio.sleep(POLL_S)
        await group.read_to_end(retries, 2)
        await group.step("- gateway")

        accepted = {body(line) for line in group.consumed() if line["accepted"]}
        arrived = [m for messages in await everything(side("pulsar", request), group.target, QUEUES) for m in messages]
        again = {m.payload for m in arrived if split_origin(m.origin or "")[2].startswith(retries)}
        assert refused
        assert again, "the gateway received some of the messages that Java refused"
        assert again | accepted == refused
        assert again.isdisjoint(accepted)
        assert {m.payload for m in arrived} | accepted == sent


def _count(rocket: Side, topic: str) -> int:
    assert isinstance(rocket.server, RocketMQ)
    return rocket.server.message_count(topic)
