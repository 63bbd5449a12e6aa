"""The faults that tests inject into memory brokers. The conformance suite tests memory clusters without faults."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Inbound, InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked, Unreachable
from mqbridge.mapping.field_preview import preview_fields
from mqbridge.message import Batch, Message, Partition, Share, origin_prefix
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.outbound import MemoryOutbound
from mqbridge.testing.memory.adapter.registration import ADAPTER
from mqbridge.testing.memory.broker import Broker, delete_broker
from tests.conformance.arena import numbered, numbers


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster("faulty", ADAPTER.cluster_model(batch_messages=5))
    await cluster.create("t", 1)
    yield cluster
    await cluster.close()
    delete_broker("faulty")


@pytest.fixture
def broker(cluster: MemoryCluster) -> Broker:
    return cluster.broker


@pytest_asyncio.fixture
async def outbound(cluster: MemoryCluster) -> AsyncIterator[MemoryOutbound]:
    outbound = await cluster.outbound(OutboundSpec("t"))
    assert isinstance(outbound, MemoryOutbound)
    yield outbound
    await outbound.close()


@pytest_asyncio.fixture
async def inbound(cluster: MemoryCluster) -> AsyncIterator[Inbound]:
    inbound = await cluster.inbound(InboundSpec(("t",), "g"))
    yield inbound
    await inbound.close()


async def test_refused_messages_are_reported_with_the_reason(broker: Broker, outbound: MemoryOutbound) -> None:
    broker.faults.refuse = lambda message: "odd" if int(message.payload or b"0") % 2 else None
    receipt = await outbound.send(0, Share(Batch.of(numbered(0, 4))))
    assert [(failure.index, failure.failure_kind, failure.reason) for failure in receipt.failures] == [
        (1, Failure.REFUSED, "odd"),
        (3, Failure.REFUSED, "odd"),
    ]
    assert receipt.highest_position == (1,)


async def test_transient_failures_are_retried_in_order(broker: Broker, outbound: MemoryOutbound) -> None:
    broker.faults.transient = 3
    receipts = await asyncio.gather(*(outbound.send(0, Share(Batch.of(numbered(index, index + 1)))) for index in range(3)))
    assert [receipt.highest_position for receipt in receipts] == [(0,), (1,), (2,)]
    assert broker.faults.transient == 0


async def test_transient_failures_are_reported_at_the_deadline(cluster: MemoryCluster, broker: Broker) -> None:
    broker.faults.transient = 1_000_000
    outbound = await cluster.outbound(OutboundSpec("t", max_elapsed_s=0.05))
    receipt = await outbound.send(0, Share(Batch.of(numbered(0, 2))))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(0, Failure.RETRY), (1, Failure.RETRY)]
    await outbound.close()


async def test_a_fatal_fault_fails_every_send(broker: Broker, outbound: MemoryOutbound) -> None:
    broker.faults.fatal = "no rights"
    with pytest.raises(ClusterError, match="no rights") as raised:
        await outbound.send(0, Share(Batch.of(numbered(0, 1))))
    assert raised.value.failure is Failure.FATAL


async def test_receipts_are_withheld_until_they_are_released(broker: Broker, outbound: MemoryOutbound, inbound: Inbound) -> None:
    broker.faults.hold_receipts = True
    receipt = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    lane = await anext(inbound.lanes())
    await lane.receive()
    assert not receipt.done()
    broker.release_receipts()
    assert (await receipt).highest_position == (0,)


async def test_delays_do_not_change_results(broker: Broker, outbound: MemoryOutbound, inbound: Inbound) -> None:
    broker.faults.receipt_delay_s = broker.faults.receive_delay_s = 0.001
    assert (await outbound.send(0, Share(Batch.of(numbered(0, 3))))).highest_position == (2,)
    lane = await anext(inbound.lanes())
    assert numbers((await lane.receive()).messages) == [0, 1, 2]


async def test_a_disconnect_ends_lanes_and_sends_wait_for_the_reconnect(
    cluster: MemoryCluster, broker: Broker, outbound: MemoryOutbound, inbound: Inbound
) -> None:
    await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    lanes = inbound.lanes()
    lane = await anext(lanes)
    await lane.receive()
    broker.disconnect()
    with pytest.raises(LaneRevoked):
        await lane.receive()
    with pytest.raises(Unreachable):
        await cluster.connect()
    with pytest.raises(Unreachable):
        await cluster.inbound(InboundSpec(("t",), "g"))
    waiting = outbound.send(0, Share(Batch.of(numbered(3, 4))))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    broker.reconnect()
    await waiting
    assert numbers((await (await anext(lanes)).receive()).messages) == [0, 1, 2, 3]


async def test_a_revoked_partition_is_read_again_from_the_acknowledged_offset(
    broker: Broker, outbound: MemoryOutbound, inbound: Inbound
) -> None:
    await outbound.send(0, Share(Batch.of(numbered(0, 15))))
    lanes = inbound.lanes()
    lane = await anext(lanes)
    batches = [await lane.receive() for _ in range(3)]
    lane.acknowledge(batches[0])
    broker.revoke("t", 0)
    lane.acknowledge(batches[1])
    with pytest.raises(LaneRevoked):
        await lane.receive()
    assert (await (await anext(lanes)).receive()).first == (5,)


async def test_deleted_messages_are_a_gap(broker: Broker, outbound: MemoryOutbound, inbound: Inbound) -> None:
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    lane = await anext(inbound.lanes())
    await lane.receive()
    broker.delete_below("t", 0, 7)
    with pytest.raises(GapError, match="5 to 6") as gap:
        await lane.receive()
    assert gap.value.resume == (7,)
    await lane.seek((7,))
    assert numbers((await lane.receive()).messages) == [7, 8, 9]


async def test_a_failed_group_ends_its_members_with_the_error(broker: Broker, inbound: Inbound) -> None:
    lanes = inbound.lanes()
    await anext(lanes)
    broker.fail("g", ClusterError("no rights", Failure.FATAL))
    with pytest.raises(ClusterError, match="no rights"):
        await anext(lanes)


async def test_individual_acknowledgement_counts_deliveries() -> None:
    cluster = MemoryCluster("individual", ADAPTER.cluster_model(individual_ack=True, batch_messages=1, empty_payload=False))
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    assert [failure.index for failure in (await outbound.send(0, Share(Batch.of([*numbered(0, 3), Message(b"")])))).failures] == [
        3
    ]
    inbound = await cluster.inbound(InboundSpec(("t",), "g"))
    lane = await anext(inbound.lanes())
    first, second, third = [await lane.receive() for _ in range(3)]
    lane.reject(second)
    lane.acknowledge(third)
    lane.acknowledge(first)
    assert await cluster.committed("t", "g") == {"0": (1,)}
    again = await lane.receive()
    assert (numbers(again.messages), again.messages[0].delivery_count) == ([1], 1)
    lane.acknowledge(again)
    assert await cluster.committed("t", "g") == {"0": (3,)}
    await inbound.close()
    await outbound.close()
    delete_broker("individual")


@pytest.mark.parametrize("growing", [True, False])
async def test_an_open_outbound_grows_with_its_topic_if_configured(growing: bool) -> None:
    cluster = MemoryCluster("growing", ADAPTER.cluster_model(growing_outbound=growing))
    assert cluster.capabilities.growing_outbound is growing
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    await cluster.create("t", 3)
    assert outbound.partitions == (3 if growing else 1)
    assert (await outbound.send(outbound.partitions - 1, Share(Batch.of(numbered(0, 2))))).highest_position == (1,)
    assert len(cluster.broker.topics["t"][outbound.partitions - 1].messages) == 2
    await outbound.close()
    delete_broker("growing")


async def test_a_stamped_origin_adds_a_hop(cluster: MemoryCluster, broker: Broker) -> None:
    stamped, plain = await cluster.outbound(OutboundSpec("t")), await cluster.outbound(OutboundSpec("t", stamp_origin=False))
    source = Partition("x", "y", "0", 0)
    for outbound in (stamped, plain):
        await outbound.send(
            0, Share(Batch.of([Message(b"", position=(1,)), Message(b"", position=(2,), origin="z|z|0|1", hops=4)], source))
        )
        await outbound.close()
    assert [(message.origin, message.hops) for message in broker.topics["t"][0].messages] == [
        ("x|y|0|1", 1),
        ("x|y|0|2", 5),
        (None, 0),
        ("z|z|0|1", 4),
    ]


async def test_a_message_with_the_new_origin_already_keeps_its_hops(cluster: MemoryCluster, broker: Broker) -> None:
    source, message = Partition("x", "y", "0", 0), Message(b"", position=(1,), origin="x|y|0|1", hops=1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    await outbound.send(0, Share(Batch.of([message], source)))
    await outbound.close()
    stored = broker.topics["t"][0].messages[0]
    assert (stored.origin, stored.hops) == ("x|y|0|1", 1)
    assert dict(preview_fields(message, origin_prefix(source)))["hops"] == "1"


async def test_no_send_overtakes_one_that_missed_its_deadline(cluster: MemoryCluster, broker: Broker) -> None:
    outbound = await cluster.outbound(OutboundSpec("t", max_elapsed_s=0.2))
    broker.disconnect()
    receipts = [outbound.send(0, Share(Batch.of(numbered(0, 1))))]
    await asyncio.sleep(0.1)
    receipts += [outbound.send(0, Share(Batch.of(numbered(index, index + 1)))) for index in (1, 2)]
    await receipts[0]  # the deadlines of the others have not passed yet
    broker.reconnect()
    results = [await receipt for receipt in receipts]
    assert [[failure.failure_kind for failure in receipt.failures] for receipt in results] == [[Failure.RETRY]] * 3
    again = await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    assert again.positions == [(0,), (1,), (2,)]


async def test_a_group_with_start_latest_reads_added_partitions_from_their_beginning(
    cluster: MemoryCluster, broker: Broker, outbound: MemoryOutbound
) -> None:
    await outbound.send(0, Share(Batch.of(numbered(0, 5))))
    inbound = await cluster.inbound(InboundSpec(("t",), "g", Start.LATEST))
    lanes = inbound.lanes()
    await anext(lanes)
    broker.create("t", 2)
    await outbound.send(1, Share(Batch.of(numbered(0, 5))))
    assert numbers((await (await anext(lanes)).receive()).messages) == list(range(5))
    await inbound.close()
    broker.create("t", 3)
    await outbound.send(2, Share(Batch.of(numbered(0, 5))))
    inbound = await cluster.inbound(InboundSpec(("t",), "g", Start.LATEST))
    lanes = inbound.lanes()
    for _ in range(3):
        lane = await anext(lanes)
    assert lane.partition.index == 2
    assert numbers((await lane.receive()).messages) == list(range(5))
    await inbound.close()
