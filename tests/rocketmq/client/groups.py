"""Brokers without sockets that store messages, groups, offsets and locks; an extension of `broker.Cluster`."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer import commit_carrying_pulls, pull_consumer, pull_loop
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.connections import ClientConnection, ConsumerConnections
from mqbridge.rocketmq.wire.bodies.groups import ConsumerList, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockedQueues, LockRequest
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult
from mqbridge.rocketmq.wire.record import Record, encode_record
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import Answer, Cluster, Link, scripted_client

PULLS = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)


class QueueLog:
    """The messages of one queue. Those before the offset `first` are deleted; one response contains at most `limit` messages."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.first = 0
        self.records: list[bytes] = []
        self.limit = 32
        self.compacted: set[int] = set()
        self.incarnation = 0
        """How often the topic was deleted and made anew."""

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, *messages: bytes, tag: str | None = None) -> None:
        stored = properties.encode([("TAGS", tag)] if tag else [])
        for body in messages:
            record = Record(
                self.queue.topic, body, stored, queue_id=self.queue.id, queue_offset=self.end, store_timestamp=self.incarnation
            )
            self.records.append(encode_record(record))

    def make_anew(self) -> None:
        """Delete all messages and count offsets from 0 again, as after the topic was deleted and created again."""
        self.records, self.first, self.compacted = [], 0, set()
        self.incarnation += 1

    def read(self, offset: int, max_messages: int = 32) -> tuple[int, int, bytes]:
        """Return the response code, the next offset and the body for a pull at this offset."""
        if self.end == 0:
            return (Status.PULL_NOT_FOUND if offset == 0 else Status.PULL_OFFSET_MOVED), 0, b""
        if offset < self.first or offset > self.end:
            return Status.PULL_OFFSET_MOVED, self.first if offset < self.first else self.end, b""
        if offset == self.end:
            return Status.PULL_NOT_FOUND, offset, b""
        begin = next((at for at in range(offset, self.end) if at not in self.compacted), self.end)
        stop = min(begin + min(self.limit, max_messages), self.end)
        kept = [self.records[at] for at in range(begin, stop) if at not in self.compacted]
        return Status.SUCCESS, stop, b"".join(kept)


class Groups:
    """The members, offsets, locks and messages of a scripted cluster.

    Its handlers are in `cluster.on`, where tests may replace them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.logs: dict[Queue, QueueLog] = {}
        self.offsets: dict[tuple[str, Queue], int] = {}
        self.members: defaultdict[str, dict[str, Link]] = defaultdict(dict)
        self.subscriptions: dict[str, tuple[SubscriptionData, ...]] = {}
        """By group, the subscriptions of its last heartbeat; for each topic, the one with the newest version."""
        self.locks: dict[tuple[str, Queue], str] = {}
        self.resets: dict[tuple[str, Queue], int] = {}
        self.held: list[tuple[Link, Command]] = []
        self.times: dict[Queue, list[int]] = {}
        self.max_held = 0
        self.make_retry_topics = True
        answers: dict[int, Answer] = {
            Code.HEART_BEAT: self.heartbeat,
            Code.UNREGISTER_CLIENT: self.unregister,
            Code.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
            Code.GET_CONSUMER_CONNECTION_LIST: self.list_connections,
            Code.QUERY_CONSUMER_OFFSET: self.query_offset,
            Code.UPDATE_CONSUMER_OFFSET: self.update_offset,
            Code.GET_MIN_OFFSET: lambda link, request: self.bound(link, request, lambda log: log.first),
            Code.GET_MAX_OFFSET: lambda link, request: self.bound(link, request, lambda log: log.end),
            Code.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            Code.LOCK_BATCH_MQ: self.lock,
            Code.UNLOCK_BATCH_MQ: self.unlock,
            Code.PULL_MESSAGE: self.pull,
            Code.LITE_PULL_MESSAGE: self.pull,
            Code.GET_TOPIC_CONFIG: lambda link, request: link.answer(
                request, body=TopicConfig(request.ext["topic"], 2, 2).encode()
            ),
        }
        cluster.on.update(answers)

    def log(self, topic: str = "T", broker: str = "broker-a", number: int = 0) -> QueueLog:
        queue = Queue(topic, broker, number)
        return self.logs.setdefault(queue, QueueLog(queue))

    def append(
        self, *messages: bytes, topic: str = "T", broker: str = "broker-a", number: int = 0, tag: str | None = None
    ) -> None:
        """Store messages and wake the pulls that wait for them."""
        self.log(topic, broker, number).append(*messages, tag=tag)
        waiting, self.held = self.held, []
        for link, request in waiting:
            if self._queue(link, request) == Queue(topic, broker, number):
                self.answer_pull(link, request)
            else:
                self.held.append((link, request))

    def committed(self, group: str, topic: str = "T", broker: str = "broker-a", number: int = 0) -> int | None:
        return self.offsets.get((group, Queue(topic, broker, number)))

    def pulls(self, number: int | None = None) -> list[PullHeader]:
        """Return the headers of all pulls, or of those from one queue number."""
        headers = [PullHeader.decode(command.ext) for code in PULLS for command in self.cluster.requests[code]]
        return [header for header in headers if number is None or header.queue_id == number]

    def send_request(self, client: ClusterClient, request: Command) -> None:
        """Send a request from a broker to a client."""
        self.members_link(client).send(request)

    def members_link(self, client: ClusterClient) -> Link:
        return next(link for group in self.members.values() for member, link in group.items() if member == client.client_id)

    def _queue(self, link: Link, request: Command) -> Queue:
        broker = next(name for name, addresses in self.cluster.brokers.items() if link.address in addresses.values())
        return Queue(request.ext["topic"], broker, int(request.ext["queueId"]))

    # --- members ----------------------------------------------------------------------------------------------------

    def heartbeat(self, link: Link, request: Command) -> None:
        beat = Heartbeat.decode(request.body)
        for consumer in beat.consumers:
            group = self.members[consumer.group]
            is_unchanged = beat.client_id in group and _topics(self.subscriptions[consumer.group]) == _topics(
                consumer.subscriptions
            )
            group[beat.client_id] = link
            kept = {each.topic: each for each in self.subscriptions.get(consumer.group, ())}
            self.subscriptions[consumer.group] = tuple(_newer(kept.get(each.topic), each) for each in consumer.subscriptions)
            if self.make_retry_topics:
                self.cluster.topics.setdefault(f"%RETRY%{consumer.group}", {"broker-a": 1})
            if not is_unchanged:
                self.notify(consumer.group)
        link.answer(request)

    def unregister(self, link: Link, request: Command) -> None:
        group = request.ext.get("consumerGroup")
        if group and self.members[group].pop(request.ext["clientID"], None) is not None:
            self.notify(group)
        link.answer(request)

    def notify(self, group: str) -> None:
        for link in list(self.members[group].values()):
            link.send(Command(Code.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=ONEWAY))

    def list_members(self, link: Link, request: Command) -> None:
        members = self.members[request.ext["consumerGroup"]]
        if members:
            link.answer(request, body=ConsumerList(tuple(members)).encode())
        else:
            link.answer(request, Status.SYSTEM_ERROR, remark="no consumer for this group")

    def list_connections(self, link: Link, request: Command) -> None:
        group = request.ext["consumerGroup"]
        if not self.members[group]:
            link.answer(request, Status.CONSUMER_NOT_ONLINE, remark="not online")
            return
        connections = tuple(ClientConnection(client_id, "10.0.0.9:1") for client_id in self.members[group])
        link.answer(request, body=ConsumerConnections(connections, self.subscriptions[group]).encode())

    # --- offsets ----------------------------------------------------------------------------------------------------

    def query_offset(self, link: Link, request: Command) -> None:
        offset = self.offsets.get((request.ext["consumerGroup"], self._queue(link, request)))
        assert request.ext["setZeroIfNotFound"] == "false"
        if offset is None:
            link.answer(request, Status.QUERY_NOT_FOUND, remark="not found")
        else:
            link.answer(request, ext={"offset": str(offset)})

    def update_offset(self, link: Link, request: Command) -> None:
        key = request.ext["consumerGroup"], self._queue(link, request)
        if key not in self.resets:  # during a reset, a 5.x broker responds with SUCCESS but ignores the commit
            self.offsets[key] = int(request.ext["commitOffset"])
        link.answer(request)

    def bound(self, link: Link, request: Command, choose: Callable[[QueueLog], int]) -> None:
        link.answer(request, ext={"offset": str(choose(self.log(*self._queue(link, request))))})

    def search(self, link: Link, request: Command) -> None:
        queue = self._queue(link, request)
        times = self.times.get(queue, [])
        timestamp_ms = int(request.ext["timestamp"])
        link.answer(request, ext={"offset": str(next((at for at, ms in enumerate(times) if ms >= timestamp_ms), len(times)))})

    # --- locks ------------------------------------------------------------------------------------------------------

    def lock(self, link: Link, request: Command) -> None:
        lock_request = LockRequest.decode(request.body)
        held = [
            queue
            for queue in lock_request.queues
            if self.locks.setdefault((lock_request.group, queue), lock_request.client_id) == lock_request.client_id
        ]
        link.answer(request, body=LockedQueues(tuple(held)).encode())

    def unlock(self, link: Link, request: Command) -> None:
        lock_request = LockRequest.decode(request.body)
        for queue in lock_request.queues:
            if self.locks.get((lock_request.group, queue)) == lock_request.client_id:
                del self.locks[lock_request.group, queue]
        link.answer(request)

    # --- pulling ----------------------------------------------------------------------------------------------------

    def pull(self, link: Link, request: Command) -> None:
        header, queue = PullHeader.decode(request.ext), self._queue(link, request)
        key = header.consumer_group, queue
        if header.sys_flag & PullFlag.COMMIT_OFFSET and key not in self.resets:
            self.offsets[key] = header.commit_offset
        log = self.log(*queue)
        if key in self.resets:
            self.answer_pull(link, request)
        elif log.read(header.queue_offset)[0] == Status.PULL_NOT_FOUND and header.sys_flag & PullFlag.SUSPEND:
            self.held.append((link, request))
            self.max_held = max(self.max_held, len(self.held))
        else:
            self.answer_pull(link, request)

    def answer_pull(self, link: Link, request: Command) -> None:
        queue = self._queue(link, request)
        log = self.log(*queue)
        reset = self.resets.pop((request.ext["consumerGroup"], queue), None)
        if reset is not None:
            link.answer(request, Status.PULL_OFFSET_MOVED, pull_fields(reset, log.first, log.end), remark="OFFSET_RESET")
            return
        code, after, body = log.read(int(request.ext["queueOffset"]), int(request.ext["maxMsgNums"]))
        link.answer(request, code, pull_fields(after, log.first, log.end), body)

    def release_held(self) -> None:
        """Answer all held pulls, as if their hold time had passed."""
        waiting, self.held = self.held, []
        for link, request in waiting:
            self.answer_pull(link, request)


def _newer(stored: SubscriptionData | None, received: SubscriptionData) -> SubscriptionData:
    return received if stored is None or received.version > stored.version else stored


def _topics(subscriptions: tuple[SubscriptionData, ...]) -> set[str]:
    return {each.topic for each in subscriptions}


def pull_fields(after: int, first: int, end: int) -> dict[str, str]:
    """Return the header of a pull response: the next offset `after`, and the `first` and `end` offset of the queue."""
    return PullResult(0, after, first, end).encode()


def offset_moved(after: int, first: int, end: int, remark: str = "") -> Answer:
    return lambda link, request: link.answer(request, Status.PULL_OFFSET_MOVED, pull_fields(after, first, end), remark=remark)


def pull_response(code: int, after: int, first: int, end: int, remark: str = "", body: bytes = b"") -> Answer:
    """Return a handler that answers a pull with exactly these values."""
    return lambda link, request: link.answer(request, code, pull_fields(after, first, end), body, remark=remark)


class ScriptedEnvironment:
    """Clients and consumers between scripted brokers; everything is closed at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.groups = Groups(cluster)
        self.clients: list[ClusterClient] = []
        self.consumers: list[PullConsumer] = []
        cluster.topics["T"] = {"broker-a": 1}

    async def join(self, instance: str = "1#1", **settings: Any) -> PullConsumer:
        """Join group G on topic T, without its retry topic unless the settings request it."""
        client = scripted_client()
        client._instance = instance
        self.clients.append(client)
        await client.connect()
        merged = {"group": "G", "subscriptions": (everything("T"),), "retries": False} | settings
        consumer = await join(client, ConsumerSettings(**merged))
        self.consumers.append(consumer)
        return consumer

    async def assigned(self, **settings: Any) -> AssignedQueue:
        """Join, and return the first queue assigned to the new member."""
        return await first_stream(await self.join(**settings))

    async def close(self) -> None:
        for consumer in self.consumers:
            await consumer.close()
        for client in self.clients:
            await client.close()


async def first_stream(consumer: PullConsumer) -> AssignedQueue:
    async with asyncio.timeout(PATIENCE_S):
        async for assigned in consumer.assigned_queues():
            return assigned
    raise AssertionError("no queue was assigned")


@pytest_asyncio.fixture
async def environment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedEnvironment]:
    """A ScriptedEnvironment in which all pauses that only reduce the load of servers are short."""
    for name in ("MIN_RETRY_PAUSE_S", "MAX_RETRY_PAUSE_S", "SUBSCRIPTION_WAIT_S", "FLOW_CONTROL_WAIT_S"):
        monkeypatch.setattr(pull_loop, name, 0.002)
    monkeypatch.setattr(commit_carrying_pulls, "COMMIT_STORED_S", 0.0)
    monkeypatch.setattr(pull_consumer, "HANDOVER_S", 0.0)
    monkeypatch.setattr(pull_consumer, "UNBALANCED_INTERVAL_S", 0.02)
    environment = ScriptedEnvironment(cluster)
    yield environment
    await environment.close()
