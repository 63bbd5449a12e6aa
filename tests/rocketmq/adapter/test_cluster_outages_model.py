"""Gateways start, run and end while brokers stop and return, or forbid writing: no topic grows by a guess, every key keeps its
queue, and a source that cannot be seen is waited for.

The brokers and name servers are scripted. One gateway names all brokers in its configuration, the other one keeps a state, which
cannot know of a broker that got the topic, and stopped, before the gateway saw it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ClusterError, Failure, MqbridgeError, is_transient
from mqbridge.gateway.clusters import make_clusters
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.connection import connection
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs, TopicConfig
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.routes.plan import Planner
from mqbridge.testing.memory.adapter.registration import ADAPTER as MEMORY
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.adapter.rows import Rows
from tests.example_counts import examples
from tests.kit.virtual_time import VirtualTimeLoop
from tests.rocketmq.client.broker import TOPIC, Link, responds_with
from tests.rocketmq.client.broker import Cluster as Servers

T = TypeVar("T")

ADAPTERS = {"memory": MEMORY, "rocketmq": ADAPTER}

NAMES = ("broker-a", "broker-b", "broker-c")
MOMENTS = st.sampled_from([40.0, 40.0, 0.0])
"""Seconds from one step to the next: enough to notice a change of the route, or none."""
KEYS = tuple(b"key %d" % number for number in range(12))
NAMING, KEEPING = "with `brokers`", "with `state`"
SOURCE = __name__


class Gateway:
    """One process: its cluster, and the endpoints of its route once they are open."""

    def __init__(self, config: Config, rows: Rows | None) -> None:
        self.route, self.graph = config.routes[0], TopicGraph.of(config)
        clusters = make_clusters(config.clusters, ADAPTERS)
        self.source, rocket = clusters["here"], clusters["rocket"]
        assert isinstance(rocket, RocketMQ)
        self.rocket = rocket
        if rows is not None:
            rows.load_into(self.rocket.known_brokers)
        self.endpoints: RouteEndpoints | None = None
        self.queues: set[Queue] = set()
        """The queues that the outbound had at the last check."""
        self.indexed: list[Queue] = []
        """The queue of each index of `identity` at the last check."""
        self.began_with: dict[str, int] = {}
        """The queues that the topic had, at brokers that could be known, when the endpoints were opened."""

    @property
    def outbound(self) -> RocketMQOutbound:
        assert self.endpoints is not None
        (target,) = self.endpoints.targets[TOPIC]
        assert isinstance(target.outbound, RocketMQOutbound)
        return target.outbound

    async def open(self) -> None:
        """Connect, and open the target, as a start does. Raises ClusterError."""
        await self.rocket.connect()
        await self.source.connect()
        clusters: dict[str, Cluster] = {"rocket": self.rocket, "here": self.source}
        endpoints = RouteEndpoints(self.route, clusters, lambda _: None, lambda: self.graph)
        await endpoints.open()
        self.endpoints = endpoints

    async def close(self) -> None:
        if self.endpoints is not None:
            await self.endpoints.close()
        await self.rocket.close()
        await self.source.close()


class Outages(RuleBasedStateMachine):
    """The topic has queues at one or more of two or three brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.loop = VirtualTimeLoop()
        self.servers = Servers()
        self.patch.setattr(connection, "dial", self.servers.dial)
        self.servers.on |= {
            Code.GET_TOPIC_CONFIG: self.topic_config,
            Code.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            Code.GET_BROKER_CONFIG: responds_with(b"brokerName=x\n"),
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: responds_with(GroupConfigs({"G": GroupConfig("G")}).encode()),
        }
        self.rows = Rows()
        self.running: dict[str, Gateway] = {}
        self.places: tuple[dict[str, int], dict[bytes, Queue]] = ({}, {})
        """The queues of the topic by broker, and the queue that each key had with these."""

    # --- servers --------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> dict[str, int]:
        """The number of queues at each broker, also at those that are down."""
        return self.servers.topics.get(TOPIC, {})

    def broker_at(self, link: Link) -> str:
        return next(name for name, addresses in self.servers.brokers.items() if link.address in addresses.values())

    def topic_config(self, link: Link, request: Command) -> None:
        broker = self.broker_at(link)
        if broker in self.queues:
            count = self.queues[broker]
            link.answer(request, body=TopicConfig(TOPIC, count, count).encode())
        else:
            link.answer(request, Status.TOPIC_NOT_EXIST, remark="no topic")

    def update_topic(self, link: Link, request: Command) -> None:
        count = int(request.ext["writeQueueNums"])
        self.servers.topics.setdefault(TOPIC, {})[self.broker_at(link)] = count
        link.answer(request)

    @initialize(
        count=st.integers(2, 3), holders=st.sampled_from([1, 1, 2, 3]), queues=st.integers(1, 3), partitions=st.integers(1, 6)
    )
    def begin(self, count: int, holders: int, queues: int, partitions: int) -> None:
        """Start and end both gateways while all brokers run: what they know begins here."""
        self.servers.brokers = {name: {0: f"{name}:10911"} for name in NAMES[:count]}
        self.servers.topics = {TOPIC: dict.fromkeys(NAMES[:count][:holders], queues)}
        get_broker(SOURCE).create(TOPIC, partitions)
        for kind in (NAMING, KEEPING):
            self.start(kind)
            self.end(kind)

    @precondition(lambda self: not self.servers.down)
    @rule(data=st.data(), seconds=MOMENTS)
    def a_broker_stops(self, data: st.DataObject, seconds: float) -> None:
        self.servers.down.add(data.draw(st.sampled_from(sorted(self.servers.brokers))))
        self.moment(seconds)

    @precondition(lambda self: self.servers.down)
    @rule(seconds=MOMENTS)
    def all_brokers_run(self, seconds: float) -> None:
        self.servers.down.clear()
        self.moment(seconds)

    @precondition(lambda self: not self.servers.closed)
    @rule(data=st.data(), seconds=MOMENTS)
    def a_broker_forbids_writing(self, data: st.DataObject, seconds: float) -> None:
        self.servers.closed.add(data.draw(st.sampled_from(sorted(self.servers.brokers))))
        self.moment(seconds)

    @precondition(lambda self: self.servers.closed)
    @rule(seconds=MOMENTS)
    def all_brokers_permit_writing(self, seconds: float) -> None:
        self.servers.closed.clear()
        self.moment(seconds)

    @precondition(lambda self: self.queues.keys() - self.servers.down)
    @rule(data=st.data(), seconds=MOMENTS)
    def an_operator_adds_queues(self, data: st.DataObject, seconds: float) -> None:
        self.queues[data.draw(st.sampled_from(sorted(self.queues.keys() - self.servers.down)))] += 2
        self.moment(seconds)

    @precondition(lambda self: not self.servers.down and self.servers.brokers.keys() - self.queues.keys())
    @rule(data=st.data(), count=st.integers(1, 3), seconds=MOMENTS)
    def an_operator_gives_another_broker_the_topic(self, data: st.DataObject, count: int, seconds: float) -> None:
        self.queues[data.draw(st.sampled_from(sorted(self.servers.brokers.keys() - self.queues.keys())))] = count
        self.moment(seconds)

    @rule(more=st.integers(1, 3))
    def the_source_grows(self, more: int) -> None:
        source = get_broker(SOURCE)
        source.create(TOPIC, len(source.topics[TOPIC]) + more)

    def moment(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.check_places()

    # --- gateways -------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.running) < 2)
    @rule(data=st.data())
    def one_starts(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from(sorted({NAMING, KEEPING} - self.running.keys()))))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def one_checks_its_topics(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(sorted(self.running)))
        endpoints = self.running[kind].endpoints
        assert endpoints is not None
        self.change(kind, endpoints.refresh())

    @rule(kind=st.sampled_from([NAMING, KEEPING]), stops=st.booleans())
    def one_reads_the_topic(self, kind: str, stops: bool) -> None:
        """A start that reads the topic never gives it up while all its brokers are down; with `stops` they stop before."""
        if stops and not self.servers.down and len(self.queues) < len(self.servers.brokers):
            self.servers.down.update(self.queues)
        config = self.config(kind, source="rocket", target="here")

        async def plan() -> list[MqbridgeError]:
            gateway = Gateway(config, self.rows if kind == KEEPING else None)
            try:
                await gateway.rocket.connect()
                await gateway.source.connect()
                return (await Planner({"rocket": gateway.rocket, "here": gateway.source}).plan(gateway.route)).problems
            finally:
                await gateway.close()

        try:
            problems = self.run(plan())
        except ClusterError as error:  # no broker runs
            problems = [error]
        assert all(map(is_transient, problems)), problems
        assert not problems or self.servers.down, problems

    def config(self, kind: str, source: str, target: str) -> Config:
        known = {"brokers": sorted(self.servers.brokers)} if kind == NAMING else {}
        return from_dict(
            {
                "clusters": {
                    "rocket": {"system": "rocketmq", "name_servers": "ns:9876", **known},
                    "here": {"system": "memory", "broker": SOURCE},
                },
                "routes": [{"name": "r", "from": {"cluster": source, "topic": TOPIC, "group": "G"}, "to": {"cluster": target}}],
            },
            adapters=ADAPTERS,
        )

    def start(self, kind: str) -> None:
        config = self.config(kind, source="here", target="rocket")

        async def make() -> Gateway:
            return Gateway(config, self.rows if kind == KEEPING else None)

        gateway = self.run(make())
        if self.change(kind, gateway.open()):
            seen = {broker: count for broker, count in self.queues.items() if broker not in self.unseen(kind)}
            self.running[kind], gateway.began_with = gateway, seen
        else:
            self.run(gateway.close())
        self.check_places()

    def end(self, kind: str) -> None:
        self.run(self.running.pop(kind).close())

    def unseen(self, kind: str) -> set[str]:
        """Return the brokers that a gateway cannot know of: they do not run, and it has not seen them with the topic."""
        return set() if kind == NAMING else self.servers.down - {broker for topic, broker in self.rows.seen if topic == TOPIC}

    def change(self, kind: str, work: Coroutine[Any, Any, Any]) -> bool:
        """Await what may grow the topic; return False if it has to wait: while a broker is down or forbids writing."""
        before, down = dict(self.queues), (self.servers.down | self.servers.closed) - self.unseen(kind)

        async def inside() -> bool:
            try:
                await work
            except ClusterError as error:
                if error.failure is Failure.FATAL:  # would end the route
                    raise
                return False
            return True

        done: bool = self.run(inside())
        assert self.queues == before or not down & before.keys(), f"{before} became {self.queues} without {down}"
        return done

    def check_places(self) -> None:
        """Check that every key has one queue, whichever gateway sends it, as long as the topic has the same queues."""
        if self.places[0] != self.queues:
            self.places = (dict(self.queues), {})
        for gateway in self.running.values():
            outbound = gateway.outbound
            assert gateway.queues <= {*outbound._queues}, "a queue keeps its index while its broker is down"
            gateway.queues = {*outbound._queues}
            indexed = [outbound._queues[partition] for partition in outbound.indexed]
            assert indexed[: len(gateway.indexed)] == gateway.indexed, "an index keeps its queue"
            gateway.indexed = indexed
            if outbound.partitions == sum(self.queues.values()):  # else it has not noticed yet that the topic has grown
                for key in KEYS:
                    queue = outbound._queues[outbound.partition_of(key)]
                    assert self.places[1].setdefault(key, queue) == queue
            else:
                assert gateway.began_with != self.queues, "a start finds all queues"

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        for kind in list(self.running):
            self.end(kind)
        self.loop.close()
        self.patch.undo()
        delete_broker(SOURCE)


class AnyOutages(Outages):
    """The same rules with other random runs each time."""


RUNS = settings(stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow], deadline=None, phases=[Phase.generate])
Outages.TestCase.settings = settings(RUNS, max_examples=examples(600), derandomize=True)
AnyOutages.TestCase.settings = settings(RUNS, max_examples=examples(1500))  # a minute when newly drawn
TestOutages = Outages.TestCase
TestAnyOutages = pytest.mark.thorough(AnyOutages.TestCase)
