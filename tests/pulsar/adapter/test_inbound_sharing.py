"""How members of a subscription share, and the names that operators see."""

import pytest

from mqbridge.adapter.inbound import InboundSpec, Sharing
from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.config import GROUP_NAME, TOPIC_NAME, PulsarCluster, PulsarInboundOptions
from mqbridge.pulsar.adapter.inbound import PulsarInbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.subscription import Types
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.client.broker import Broker, scripted_client

WAYS = {
    Sharing.EXCLUSIVE: (Types.Exclusive, False),
    Sharing.FAILOVER: (Types.Failover, False),
    Sharing.SHARED: (Types.Shared, True),
    Sharing.KEY_SHARED: (Types.Key_Shared, True),
}


async def inbound_of(client: ClusterClient, spec: InboundSpec) -> PulsarInbound:
    inbound = PulsarInbound(client, Topics(client, "c", "public/default"), spec, 60.0)
    await inbound.open()
    return inbound


@pytest.mark.parametrize("sharing", WAYS)
@pytest.mark.parametrize("option", ["failover", "shared", None])
async def test_the_spec_decides_how_members_share(broker: Broker, client, sharing: Sharing, option: str | None) -> None:
    options = None if option is None else PulsarInboundOptions.model_validate({"subscription_type": option})
    inbound = await inbound_of(client, InboundSpec(("t",), "g", sharing=sharing, options=options))
    (asked,) = broker.asked[BaseCommand.SUBSCRIBE]
    assert (asked.subType, inbound.individual_ack) == WAYS[sharing]
    await inbound.close()


async def test_without_a_way_in_the_spec_the_option_decides(broker: Broker, client) -> None:
    options = PulsarInboundOptions(subscription_type="key_shared")
    await (await inbound_of(client, InboundSpec(("t",), "g", options=options))).close()
    await (await inbound_of(client, InboundSpec(("t",), "g"))).close()
    assert [asked.subType for asked in broker.asked[BaseCommand.SUBSCRIBE]] == [Types.Key_Shared, Types.Failover]


async def test_members_of_one_name_have_unique_names_that_contain_it(broker: Broker, client) -> None:
    for _ in range(2):
        await (await inbound_of(client, InboundSpec(("t",), "g", member="orders-1"))).close()
    names = [asked.consumer_name for asked in broker.asked[BaseCommand.SUBSCRIBE]]
    assert all(name.startswith("orders-1-") for name in names)
    assert len(set(names)) == 2


async def test_a_second_member_of_an_exclusive_group_is_refused(broker: Broker) -> None:
    client = scripted_client(operation=0.05)
    broker.on[BaseCommand.SUBSCRIBE] = lambda link, frame: link.error(frame.command.subscribe.request_id, pb.ConsumerBusy)
    with pytest.raises(ClusterError, match="in use") as raised:
        await inbound_of(client, InboundSpec(("t",), "g", sharing=Sharing.EXCLUSIVE))
    assert raised.value.failure is Failure.FATAL
    await client.close()


def test_names_that_the_rules_accept_are_valid() -> None:
    config = PulsarCluster(service_url="pulsar://127.0.0.1:6650")
    for char in map(chr, [*range(0x250), 0x4E2D, 0x1F600]):
        for name in (char, f"a{char}", f"a{char}b"):
            if TOPIC_NAME.problem(name) is None:
                config.check_topic_name(name)
            escaped = TOPIC_NAME.escape(name)
            assert TOPIC_NAME.problem(escaped) is None
            config.check_topic_name(escaped)
            assert TOPIC_NAME.unescape(escaped) == name
            assert GROUP_NAME.problem(GROUP_NAME.escape(name)) is None


def test_topics_are_deleted_only_with_the_rest_interface() -> None:
    with_admin = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1"))
    without = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1"))
    assert (with_admin.capabilities.delete_topics, without.capabilities.delete_topics) == (True, False)


async def test_a_group_is_deleted_only_with_the_rest_interface() -> None:
    cluster = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1"))
    for deletion in (cluster.operations.delete_group("t", "g"), cluster.delete("t")):  # type: ignore[union-attr]
        with pytest.raises(ClusterError, match="admin_url") as raised:
            await deletion
        assert raised.value.failure is Failure.FATAL
    await cluster.close()
