"""The server as a whole: what a producer and a consumer do, step by step."""

import pytest

from mqbridge.tubemq.server.broker import BROKER_ID
from tests.tubemq.server.serving import GROUP, TOPIC, bodies_of, serving


@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_consumer_gets_what_a_producer_has_sent(owns_groups: bool) -> None:
    async with serving(owns_groups=owns_groups, create_partitions=2) as served:
        producer, consumer = await served.connect("p"), await served.connect("c")
        registered = await producer.register_producer()
        assert (registered.errCode, len(registered.brokerInfos)) == (200, 1)
        published = await producer.publish(TOPIC, brokerCheckSum=registered.brokerCheckSum)
        assert published.topicInfos == [f"{TOPIC}#{BROKER_ID}:2:1#8388608"]
        assert not published.brokerInfos
        assert await producer.store(b"a", b"b", b"c") == [0, 28, 56]
        assert (await consumer.join()).errCode == 200
        refs = await consumer.assigned()
        assert sorted(ref.partition for ref in refs) == [0, 1]
        owned = await consumer.own()
        assert (owned.errCode, owned.currOffset, owned.maxOffset) == (200, 0, 84)
        got = await consumer.pack()
        assert (got.errCode, bodies_of(got), got.currOffset, got.maxOffset) == (200, [b"a", b"b", b"c"], 0, 84)
        confirmed = await consumer.confirm()
        assert (confirmed.errCode, confirmed.currOffset) == (200, 84)
        assert (await consumer.get(consumed=True)).errCode == 404
        assert served.server.consumers.groups[GROUP].owned == 1
