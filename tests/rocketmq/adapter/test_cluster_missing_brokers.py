"""A Broker that is down is in no route: what is known about it keeps the numbers of queues, and targets wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.config.load import from_dict
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.message import NO_INDEX, Batch, Message, Partition, Share
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.routes.plan import Plan, Planner
from mqbridge.routes.source_indexes import record_partitions
from mqbridge.routing.partitions import Partitioner
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.gateway.world import put
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.rocketmq.client import broker
from tests.rocketmq.client.broker import TOPIC, A, B, cluster, responds_with, route_body

__all__ = ["cluster"]


def config(partitions: dict[str, Any] | None = None, **settings: Any) -> Any:
    return from_dict(
        {
            "clusters": {
                "rocket": {"system": "rocketmq", "name_servers": "ns:9876", "refresh": "100ms", **settings},
                "here": {"system": "memory", "broker": __name__},
            },
            "routes": [
                {
                    "name": "r",
                    "from": {"cluster": "rocket", "topic": TOPIC, "group": "G"},
                    "to": {"cluster": "here", "partitions": partitions or {"by": "modulo"}},
                }
            ],
        }
    )


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[RocketMQ]:
    async with connected_clusters(config(**settings)) as clusters:
        rocket = clusters["rocket"]
        assert isinstance(rocket, RocketMQ)
        yield rocket


async def open_outbound(rocket: RocketMQ) -> RocketMQOutbound:
    outbound = await rocket.outbound(OutboundSpec(TOPIC))
    assert isinstance(outbound, RocketMQOutbound)
    return outbound


async def where(cluster: broker.Cluster, outbound: RocketMQOutbound, partition: int) -> tuple[str, int]:
    """Send a message to a partition, and return the address of the Broker and the queue that got it."""
    before = {key: len(messages) for key, messages in cluster.stored.items()}
    assert not (await outbound.send(partition, Share(Batch.of([Message(b"x")])))).failures
    (found,) = [key for key, messages in cluster.stored.items() if len(messages) > before.get(key, 0)]
    return found


async def chosen(cluster: broker.Cluster, outbound: RocketMQOutbound, index: int) -> tuple[str, int]:
    """Return where a message of the source partition with this index goes by `identity`."""
    batch = Batch(Partition("here", "t", str(index), index), [Message(b"x")], count=1, size=1, first=(0,), next=(1,))
    [(partition, _)] = Partitioner(PartitionRule(by="identity"), outbound).divide(Share(batch))
    return await where(cluster, outbound, partition)


# --- targets --------------------------------------------------------------------------------------------------------------


async def test_partitions_of_a_target_are_counted_by_queue_number_first(cluster: broker.Cluster) -> None:
    async with opened() as rocket:
        outbound = await open_outbound(rocket)
        before = [await where(cluster, outbound, partition) for partition in range(4)]
        assert before == [(A, 0), (B, 0), (A, 1), (B, 1)]
        cluster.topics[TOPIC] = {"broker-a": 3, "broker-b": 3}
        await until(lambda: outbound.partitions == 6)
        assert [await where(cluster, outbound, partition) for partition in range(4)] == before, "new queues are at the end"
        await outbound.close()


@pytest.mark.parametrize("named", [(), ("broker-b",)], ids=["unnamed", "named"])
async def test_indexes_stay_when_a_broker_joins_a_target(cluster: broker.Cluster, named: tuple[str, ...]) -> None:
    """Also when the route is opened again, and if the brokers are named, at a start."""
    cluster.topics[TOPIC] = {"broker-b": 2}
    async with opened(brokers=list(named)) as rocket:
        outbound = await open_outbound(rocket)
        before = [await chosen(cluster, outbound, index) for index in range(2)]
        assert before == [(B, 0), (B, 1)]
        cluster.topics[TOPIC]["broker-a"] = 2
        await until(lambda: outbound.partitions == 4)
        again = await open_outbound(rocket)
        for each in (outbound, again):
            assert [await chosen(cluster, each, index) for index in range(4)] == [*before, (A, 0), (A, 1)]
            assert [await where(cluster, each, partition) for partition in range(4)] == [(A, 0), (B, 0), (A, 1), (B, 1)]
            await each.close()
    async with opened(brokers=list(named)) as rocket:
        outbound = await open_outbound(rocket)
        found = [await chosen(cluster, outbound, index) for index in range(4)]
        assert found == ([*before, (A, 0), (A, 1)] if named else [(A, 0), (B, 0), (A, 1), (B, 1)])
        await outbound.close()


async def test_a_queue_that_is_writable_again_gets_its_messages_again(cluster: broker.Cluster) -> None:
    async with opened() as rocket:
        outbound = await open_outbound(rocket)
        cluster.topics[TOPIC]["broker-b"] = 1
        await until(lambda: len({*outbound._queues}) == 3)
        assert await where(cluster, outbound, 3) == (A, 0)
        cluster.topics[TOPIC]["broker-b"] = 2
        await until(lambda: len({*outbound._queues}) == 4)
        assert [await where(cluster, outbound, partition) for partition in range(4)] == [(A, 0), (B, 0), (A, 1), (B, 1)]
        await outbound.close()


async def test_a_key_goes_to_the_queue_that_java_producers_choose(cluster: broker.Cluster) -> None:
    async with opened() as rocket:
        outbound = await open_outbound(rocket)
        in_java = [(A, 0), (A, 1), (B, 0), (B, 1)]  # sorted by Broker; "a".hashCode() is 97
        for number, key in enumerate((b"d", b"e", b"f", b"g")):
            assert await where(cluster, outbound, outbound.partition_of(key)) == in_java[number]
        await outbound.close()


async def test_the_first_send_waits_for_the_only_broker_of_its_topic(cluster: broker.Cluster) -> None:
    """It restarts, and no name server lists the topic: that is no proof that the topic of an open outbound was deleted."""
    cluster.topics = {TOPIC: {"broker-a": 2}}
    async with opened(refresh="1h") as rocket:
        outbound = await open_outbound(rocket)
        cluster.down.add("broker-a")
        rocket._client.routes.invalidate(TOPIC)
        sent = outbound.send(0, Share(Batch.of([Message(b"x")])))
        await until(lambda: sent.done() or len(cluster.requests[Code.GET_ROUTEINFO_BY_TOPIC]) > 3)
        cluster.down.clear()
        receipt = await asyncio.wait_for(sent, PATIENCE_S)
        assert not receipt.failures
        await outbound.close()


async def test_a_queue_of_an_absent_broker_keeps_its_index_when_another_broker_gets_queues(cluster: broker.Cluster) -> None:
    async with opened() as rocket:
        outbound = await open_outbound(rocket)
        cluster.down.add("broker-a")
        cluster.topics[TOPIC]["broker-b"] = 5
        await until(lambda: outbound.partitions > 4)
        assert outbound.partitions == 7
        assert await where(cluster, outbound, 1) == (B, 0)
        assert await where(cluster, outbound, 3) == (B, 1)
        cluster.down.clear()
        assert await where(cluster, outbound, 0) == (A, 0)
        await outbound.close()


async def test_a_target_is_not_opened_without_a_named_broker(cluster: broker.Cluster) -> None:
    cluster.down.add("broker-a")
    async with opened(brokers="broker-a, broker-b") as rocket:
        with pytest.raises(ClusterError, match="no master of broker broker-a is registered") as caught:
            await open_outbound(rocket)
        assert caught.value.failure is Failure.RETRY
        cluster.down.clear()
        outbound = await open_outbound(rocket)
        assert outbound.partitions == 4
        await outbound.close()


async def test_a_target_waits_for_the_permission_to_write_at_one_broker(cluster: broker.Cluster) -> None:
    cluster.closed.add("broker-a")
    async with opened() as rocket:
        with pytest.raises(ClusterError, match="no permission to write at broker-a") as caught:
            await open_outbound(rocket)
        assert caught.value.failure is Failure.RETRY
        assert "If a broker is gone for good, list the others in `brokers` of cluster 'rocket'" in str(caught.value)
        cluster.closed.clear()
        rocket._client.routes.invalidate(TOPIC)
        outbound = await open_outbound(rocket)
        cluster.closed.add("broker-a")
        cluster.at[A, Code.SEND_MESSAGE_V2] = cluster.at[A, Code.SEND_BATCH_MESSAGE] = broker.refuses(Status.NO_PERMISSION)
        sent = outbound.send(0, Share(Batch.of([Message(b"x")])))
        await until(lambda: outbound.send_failure is not None and "no permission to write" in outbound.send_failure.reason)
        assert await where(cluster, outbound, 1) == (B, 0), "the other broker's queues keep their indexes"
        cluster.at.clear()
        cluster.closed.clear()
        assert not (await sent).failures
        assert await where(cluster, outbound, 0) == (A, 0)
        await outbound.close()


async def test_an_unordered_route_sends_elsewhere_what_waits_for_a_drained_broker(cluster: broker.Cluster) -> None:
    """The route delivers what could not be stored again; what it sends from then on goes to queues that may be written."""
    async with opened() as rocket:
        outbound = await rocket.outbound(OutboundSpec(TOPIC, ordered=False))
        cluster.at[A, Code.SEND_MESSAGE_V2] = cluster.at[A, Code.SEND_BATCH_MESSAGE] = broker.refuses(Status.NO_PERMISSION)
        cluster.closed.add("broker-a")
        sent = outbound.send(0, Share(Batch.of([Message(b"waits")])))
        async with asyncio.timeout(PATIENCE_S):
            assert [failure.failure_kind for failure in (await sent).failures] == [Failure.REFRESH]
            again = await outbound.send(0, Share(Batch.of([Message(b"waits")])))
        assert not again.failures
        assert not cluster.stored[A, 0]
        await outbound.close()


async def test_a_broker_that_is_not_named_may_forbid_writing_for_good(cluster: broker.Cluster) -> None:
    cluster.closed.add("broker-a")
    async with opened(brokers="broker-b") as rocket:
        outbound = await open_outbound(rocket)
        assert outbound.partitions == 2
        await outbound.close()


async def test_a_named_broker_that_runs_without_the_topic_is_not_missing(cluster: broker.Cluster) -> None:
    cluster.topics[TOPIC] = {"broker-b": 2}
    async with opened(brokers="broker-a,broker-b") as rocket:
        outbound = await open_outbound(rocket)
        assert outbound.partitions == 2
        await outbound.close()


async def test_a_target_is_not_opened_without_a_broker_of_which_only_a_slave_runs(cluster: broker.Cluster) -> None:
    cluster.brokers["broker-a"] = {1: A}
    async with opened() as rocket:
        with pytest.raises(ClusterError, match="no master of broker broker-a is registered") as caught:
            await open_outbound(rocket)
        assert caught.value.failure is Failure.RETRY


async def test_a_target_is_not_opened_without_a_broker_that_is_in_the_state(cluster: broker.Cluster, tmp_path: Path) -> None:
    for down in (set[str](), {"broker-a"}):
        cluster.down = down
        checkpoints = Checkpoints(tmp_path / "state.db")
        async with opened() as rocket:
            checkpoints.keep_brokers("rocket", rocket.known_brokers)
            if down:
                with pytest.raises(ClusterError, match="no master of broker broker-a is registered"):
                    await open_outbound(rocket)
            else:
                await (await open_outbound(rocket)).close()
        await checkpoints.close()


# --- sources --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def settings_and_groups(cluster: broker.Cluster) -> None:
    cluster.on[Code.GET_BROKER_CONFIG] = responds_with(b"brokerName=x\n")
    cluster.on[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = responds_with(GroupConfigs({"G": GroupConfig("G")}).encode())


async def plan(by: dict[str, Any], *, kept: bool = False, **settings: Any) -> Plan:
    made = config(by, **settings)
    get_broker(__name__)
    try:
        async with connected_clusters(made) as clusters:
            rocket = clusters["rocket"]
            assert isinstance(rocket, RocketMQ)
            rocket.known_brokers.is_kept = kept
            return await Planner(clusters).plan(made.routes[0])
    finally:
        delete_broker(__name__)


TABLE_BY_NAME = {f"broker-{letter}:{number}": number for letter in "ab" for number in range(2)}


@pytest.mark.parametrize(
    ("by", "options"),
    [
        ({"by": "modulo"}, {}),
        ({"by": "key"}, {}),
        ({"by": "table", "table": TABLE_BY_NAME}, {}),
        ({"by": "identity"}, {"brokers": "broker-a,broker-b"}),
        ({"by": "identity"}, {"kept": True}),
    ],
)
async def test_routes_that_need_no_index_or_know_all_brokers_are_planned(
    cluster: broker.Cluster, by: dict[str, Any], options: dict[str, Any]
) -> None:
    assert (await plan(by, **options)).problems == []


@pytest.mark.parametrize("by", [{"by": "identity"}, {"by": "table", "table": {"0": 0, "1": 1, "2": 2, "3": 3}}])
async def test_indexes_over_several_brokers_need_their_names_or_a_state(cluster: broker.Cluster, by: dict[str, Any]) -> None:
    (problem,) = (await plan(by)).problems
    assert isinstance(problem, ConfigError)
    assert "is at several brokers (broker-a, broker-b)" in str(problem)
    assert "`brokers` of cluster 'rocket', or set `state`" in problem.hint
    cluster.topics[TOPIC] = {"broker-b": 4}
    assert (await plan(by)).problems == []


async def test_indexes_for_partitions_that_are_not_listed_need_names_or_a_state(cluster: broker.Cluster) -> None:
    """The table has the names of all queues that are listed, and an index for one that is added or whose broker is down."""
    mixed = {"by": "table", "table": TABLE_BY_NAME | {"4": 0}}
    (problem,) = (await plan(mixed)).problems
    assert "is at several brokers (broker-a, broker-b)" in str(problem)
    assert (await plan(mixed, kept=True)).problems == []


async def test_a_table_of_names_and_indexes_keeps_the_layout(cluster: broker.Cluster) -> None:
    cluster.topics[TOPIC] = {"broker-b": 2}
    rules = [{"broker-b:0": 0, "broker-b:1": 1, "0": 2, "2": 3}, {"broker-b:0": 0, "broker-b:1": 1}]
    indexes: list[int] = []
    for table in rules:
        async with opened() as rocket:
            described = await rocket.describe(TOPIC)
            assert described is not None
            record_partitions(rocket, described, [PartitionRule(), PartitionRule(by="table", table=table)])
            indexes.append(rocket.known_brokers.index(TOPIC, "broker-a:0", ["broker-b:0"]))
    assert indexes == [NO_INDEX, 0], "with names alone, nothing uses the index"


async def test_a_queue_of_a_broker_that_is_not_named_has_no_index(cluster: broker.Cluster) -> None:
    (problem,) = (await plan({"by": "identity"}, brokers="broker-b")).problems
    assert "broker-a is not among the `brokers` of the cluster (broker-b)" in str(problem)


async def test_identity_creates_a_target_for_every_index(cluster: broker.Cluster) -> None:
    cluster.topics[TOPIC] = {"broker-a": 1, "broker-b": 3}
    made = await plan({"by": "identity"}, brokers="broker-a,broker-b")
    assert [planned.planned_partitions for planned in made.changes.values()] == [6], "the last index is 5"


async def test_a_plan_is_the_same_while_a_named_broker_is_down(cluster: broker.Cluster) -> None:
    indexes = []
    for down in (set[str](), {"broker-a"}):
        cluster.down = down
        made = await plan({"by": "identity"}, brokers="broker-a,broker-b")
        indexes.append(made.sources[0].topic.index_by_partition)
    assert indexes[0] == {"broker-a:0": 0, "broker-b:0": 1, "broker-a:1": 2, "broker-b:1": 3}
    assert indexes[1].items() <= indexes[0].items()


async def test_indexes_are_the_same_in_the_next_process_with_the_same_state(cluster: broker.Cluster, tmp_path: Path) -> None:
    found = []
    for down in (set[str](), {"broker-a"}):
        cluster.down = down
        checkpoints = Checkpoints(tmp_path / "state.db")
        made = config({"by": "identity"})
        get_broker(__name__)
        async with connected_clusters(made) as clusters:
            rocket = clusters["rocket"]
            assert isinstance(rocket, RocketMQ)
            checkpoints.keep_brokers("rocket", rocket.known_brokers)
            result = await Planner(clusters).plan(made.routes[0])
            assert result.problems == []
            topic = result.sources[0].topic
            found.append(topic.index_by_partition)
            record_partitions(
                rocket, topic, [target.partitions for target in made.routes[0].targets]
            )  # as opening the route does
        delete_broker(__name__)
        await checkpoints.close()
    assert found[1] == {"broker-b:0": 1, "broker-b:1": 3}
    assert found[1].items() <= found[0].items()


# --- topics to create, to grow, or that seem to be missing --------------------------------------------------------------------


HERE = f"{__name__}.targets"


async def plan_target(
    checkpoints: Checkpoints | None = None,
    *,
    partitions: int = 4,
    has_run: bool = False,
    create: bool = True,
    by: dict[str, Any] | None = None,
    **settings: Any,
) -> Plan:
    """Plan a route from a memory topic to TOPIC. `has_run`: its group has a position."""
    made = from_dict(
        {
            "clusters": {
                "rocket": {"system": "rocketmq", "name_servers": "ns:9876", **settings},
                "here": {"system": "memory", "broker": HERE},
            },
            "routes": [
                {
                    "name": "r",
                    "from": {"cluster": "here", "topic": TOPIC, "group": "G"},
                    "to": {"cluster": "rocket", "create": create, "partitions": by or {"by": "modulo"}},
                }
            ],
        }
    )
    source = get_broker(HERE)
    source.create(TOPIC, partitions)
    try:
        async with connected_clusters(made) as clusters:
            rocket, here = clusters["rocket"], clusters["here"]
            assert isinstance(rocket, RocketMQ)
            if has_run:
                inbound = await here.inbound(InboundSpec((TOPIC,), "G"))
                put(source, TOPIC, 0, b"x")
                async for lane in inbound.lanes():
                    if lane.partition.name == "0":
                        lane.acknowledge(await lane.receive())
                        break
                await inbound.close()
            if checkpoints is not None:
                checkpoints.keep_brokers("rocket", rocket.known_brokers)
            return await Planner(clusters).plan(made.routes[0])
    finally:
        delete_broker(HERE)


def changes(plan: Plan) -> list[str]:
    assert plan.problems == []
    return plan.change_notes


def waits(plan: Plan) -> str:
    """Return the problem of a plan that waits for it to pass."""
    (problem,) = plan.problems
    assert isinstance(problem, ClusterError)
    assert problem.failure is Failure.RETRY
    return str(problem)


async def test_a_topic_does_not_grow_if_it_is_unknown_whether_a_broker_is_down(cluster: broker.Cluster) -> None:
    cluster.down.add("broker-a")
    why = waits(await plan_target())
    assert "has 2 of 4 queues at broker broker-b, and it is unknown whether one is down" in why
    assert "name all Brokers in `brokers` of cluster 'rocket', or set `create: false`" in why
    assert changes(await plan_target(create=False)) == []
    assert changes(await plan_target(partitions=2)) == []


async def test_a_target_of_identity_waits_for_its_brokers_instead_of_lacking_partitions(cluster: broker.Cluster) -> None:
    cluster.down.add("broker-a")
    by = {"by": "identity"}
    assert "no master of broker broker-a" in waits(await plan_target(brokers="broker-a,broker-b", by=by, create=False))
    assert "it is unknown whether one is down" in waits(await plan_target(by=by))


async def test_a_topic_grows_if_all_named_brokers_run(cluster: broker.Cluster) -> None:
    cluster.down.add("broker-a")
    assert "no master of broker broker-a is registered" in "".join(
        map(str, (await plan_target(partitions=6, brokers="broker-a,broker-b")).problems)
    )
    cluster.down.clear()
    assert changes(await plan_target(partitions=6, brokers="broker-a,broker-b")) == [
        f"topic rocket/{TOPIC} grows from 4 to 6 partitions"
    ]


async def test_a_topic_is_not_created_again_while_a_broker_is_down(cluster: broker.Cluster, tmp_path: Path) -> None:
    cluster.topics[TOPIC] = {"broker-a": 4}
    checkpoints = Checkpoints(tmp_path / "state.db")
    assert changes(await plan_target(checkpoints)) == []  # also records the Broker: the target was opened
    await checkpoints.close()
    cluster.down.add("broker-a")
    assert "no master of broker broker-a is registered" in waits(await plan_target(brokers="broker-a,broker-b"))
    assert "has read messages before, so the topic may exist" in waits(await plan_target(has_run=True))
    assert "a broker that has it may be down" in waits(await plan_target(create=False))
    checkpoints = Checkpoints(tmp_path / "state.db")
    assert "no master of broker broker-a is registered" in waits(await plan_target(checkpoints))
    await checkpoints.close()


async def test_a_first_topic_is_created(cluster: broker.Cluster) -> None:
    del cluster.topics[TOPIC]
    created = [f"topic rocket/{TOPIC} is created with 4 partitions"]
    assert changes(await plan_target()) == created
    assert changes(await plan_target(has_run=True, brokers="broker-a,broker-b")) == created


async def test_a_topic_without_writable_queues_is_waited_for(cluster: broker.Cluster) -> None:
    def read_only(link: broker.Link, request: broker.Command) -> None:
        body = route_body(cluster, TOPIC)
        for queue_data in body["queueDatas"]:
            queue_data["perm"] = 4
        responds_with(body)(link, request)

    cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = read_only
    assert "has no writable queue now" in waits(await plan_target())


async def test_a_source_topic_is_waited_for_unless_it_certainly_does_not_exist(cluster: broker.Cluster) -> None:
    cluster.topics[TOPIC] = {"broker-a": 2}
    cluster.down.add("broker-a")
    assert "a broker that has it may be down" in waits(await plan({"by": "modulo"}))
    assert "no master of broker broker-a" in waits(await plan({"by": "modulo"}, brokers="broker-a,broker-b"))
    cluster.down.clear()
    del cluster.topics[TOPIC]
    (problem,) = (await plan({"by": "modulo"}, brokers="broker-a,broker-b")).problems
    assert isinstance(problem, ClusterError)
    assert problem.failure is Failure.FATAL


async def test_a_route_that_joins_again_waits_for_its_topic(cluster: broker.Cluster) -> None:
    async with opened() as rocket:
        assert await rocket.describe(TOPIC) is not None
        rocket.known_brokers.record(TOPIC, ["broker-a", "broker-b"])
        cluster.down.update(["broker-b"])
        cluster.topics[TOPIC] = {"broker-b": 2}
        with pytest.raises(ClusterError, match="no master of broker broker-b") as caught:
            await rocket.inbound(InboundSpec((TOPIC,), "G"))
        assert caught.value.failure is Failure.RETRY


async def test_the_error_about_a_topic_to_create_says_what_to_do_about_a_broker_that_is_gone(
    cluster: broker.Cluster, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    assert changes(await plan_target(checkpoints)) == []
    await checkpoints.close()
    cluster.down.add("broker-a")
    cluster.topics.clear()
    checkpoints = Checkpoints(tmp_path / "state.db")
    async with opened() as rocket:
        checkpoints.keep_brokers("rocket", rocket.known_brokers)
        with pytest.raises(
            ClusterError,
            match=r"broker-a.*gone for good.* forget it with `mqbridge state FILE --forget-broker rocket/broker-a`, or list",
        ):
            await rocket.check_create("another", 1)
    async with opened(brokers="broker-b") as rocket:
        checkpoints.keep_brokers("rocket", rocket.known_brokers)
        await rocket.check_create("another", 1)
    await checkpoints.close()


async def test_a_topic_is_not_created_while_it_is_unknown_whether_the_group_has_read(
    cluster: broker.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_down(*_: str) -> None:
        raise ClusterError("a broker of the source does not answer", Failure.RETRY)

    async def cannot_tell(*_: str) -> None:
        raise ClusterError("this needs an admin_url", Failure.FATAL)

    del cluster.topics[TOPIC]
    monkeypatch.setattr("mqbridge.testing.memory.adapter.cluster.MemoryCluster.committed", is_down)
    assert "a broker of the source does not answer" in waits(await plan_target())
    monkeypatch.setattr("mqbridge.testing.memory.adapter.cluster.MemoryCluster.committed", cannot_tell)
    assert changes(await plan_target()) == [f"topic rocket/{TOPIC} is created with 4 partitions"]


async def test_a_pattern_waits_while_the_only_broker_with_a_matching_topic_is_down(
    cluster: broker.Cluster, tmp_path: Path
) -> None:
    async def problem_of(checkpoints: Checkpoints | None = None, **settings: Any) -> Exception | None:
        made = config(**settings)
        source = made.routes[0].source.model_copy(update={"topic": f"~{TOPIC}.*"})
        get_broker(__name__)
        async with connected_clusters(made) as clusters:
            rocket = clusters["rocket"]
            assert isinstance(rocket, RocketMQ)
            if checkpoints is not None:
                checkpoints.keep_brokers("rocket", rocket.known_brokers)
                rocket.known_brokers.record(TOPIC, ["broker-a", "broker-b"])
            problems = (await Planner(clusters).plan(made.routes[0].model_copy(update={"source": source}))).problems
        delete_broker(__name__)
        return problems[0] if problems else None

    cluster.topics[TOPIC] = {"broker-a": 2}
    cluster.on[Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = responds_with({"topicList": []})
    cluster.down.add("broker-a")
    checkpoints = Checkpoints(tmp_path / "state.db")
    for problem in (
        await problem_of(),
        await problem_of(brokers="broker-a,broker-b"),
        await problem_of(checkpoints),
    ):
        assert isinstance(problem, ClusterError)
        assert problem.failure is Failure.RETRY
    await checkpoints.close()
    cluster.down.clear()
    assert isinstance(await problem_of(brokers="broker-a,broker-b"), ConfigError), "there is certainly none"


# --- deletions ------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_not_deleted_while_a_broker_that_may_have_it_is_down(cluster: broker.Cluster) -> None:
    """It would bring the topic back with its messages."""
    cluster.down.add("broker-b")
    async with opened(brokers="broker-a,broker-b") as rocket:
        for topic in (TOPIC, "unknown"):
            with pytest.raises(ClusterError, match="is not deleted now: no master of broker broker-b") as raised:
                await rocket.delete(topic)
            assert raised.value.failure is Failure.RETRY
    assert cluster.requests[Code.DELETE_TOPIC_IN_BROKER] == []


async def test_a_topic_is_deleted_at_every_broker_and_name_server(cluster: broker.Cluster) -> None:
    def delete(link: broker.Link, request: broker.Command) -> None:
        cluster.topics.pop(request.ext["topic"], None)
        link.answer(request)

    cluster.on[Code.DELETE_TOPIC_IN_BROKER] = broker.success
    cluster.on[Code.DELETE_TOPIC_IN_NAMESRV] = delete
    async with opened() as rocket:
        await rocket.delete(TOPIC)
        assert await rocket.describe(TOPIC) is None
        await rocket.delete(TOPIC)
    assert len(cluster.requests[Code.DELETE_TOPIC_IN_BROKER]) == 2, "one at each of the brokers, and none for a missing topic"


async def test_a_topic_stays_deleted_in_part_if_a_broker_does_not_answer(cluster: broker.Cluster) -> None:
    cluster.on[Code.DELETE_TOPIC_IN_BROKER] = broker.success
    cluster.at[B, Code.DELETE_TOPIC_IN_BROKER] = broker.hangs_up
    async with opened() as rocket:
        with pytest.raises(ClusterError):
            await rocket.delete(TOPIC)
    assert cluster.requests[Code.DELETE_TOPIC_IN_NAMESRV] == [], "the route shows that the topic exists"
