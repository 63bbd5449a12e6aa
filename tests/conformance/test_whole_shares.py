"""With `whole_shares`, a share is stored whole or not at all; the dead letters of a listener rely on it."""

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Share
from tests.conformance.arena import SOURCE, Arena, fresh_group, numbered, numbers


async def test_a_share_with_a_message_that_cannot_be_stored_is_not_stored(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, whole_shares=True, options=arena.harness.refusing_options)
    bad = Message(bytes(arena.harness.max_payload + (2 << 20)), position=(1,))
    defective = Message(b"damaged", position=(1,), defect="bad checksum")
    for refused in (bad, defective):
        before, _, after = numbered(0, 3)
        receipt = await arena.within(outbound.send(0, Share(Batch.of([before, refused, after], SOURCE))))
        assert [failure.index for failure in receipt.failures] == [0, 1, 2]
        assert {failure.failure_kind for failure in receipt.failures} == {Failure.REFUSED}
        reasons = [failure.reason for failure in receipt.failures]
        assert reasons[1] in reasons[0] == reasons[2], "the others name the reason of the one that cannot be stored"
        assert receipt.highest_position == ()
    await arena.send(outbound, 0, numbered(3, 6))
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 3)
    assert numbers(received) == [3, 4, 5]


async def test_whole_shares_are_stored_in_order(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, whole_shares=True)
    sends = [outbound.send(0, Share(Batch.of(numbered(first, first + 3), SOURCE))) for first in range(0, 30, 3)]
    for send in sends:
        assert not (await arena.within(send)).failures
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 30)
    assert numbers(received) == list(range(30))
