"""`TopicProducer` and `TopicConsumer`: batches, choice of partitions, new partitions, and changing topics of a pattern."""

import asyncio
from types import SimpleNamespace

import pytest

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, ServerRefused
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.library.batching import Batching
from mqbridge.pulsar.library.topic_consumer import open_pattern_consumer, open_topic_consumer
from mqbridge.pulsar.library.topic_producer import open_topic_producer
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import split_batch
from mqbridge.pulsar.wire.entry import decode_entry
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.pulsar.wire.schemas import STRING, Schema
from mqbridge.pulsar.wire.topic_lists import topics_hash
from mqbridge.wire import limits
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, in_turn, until
from tests.pulsar.library.catalog import catalog

TOPIC = "persistent://public/default/t"
NAMESPACE = "public/default"
__all__ = ["catalog"]


@pytest.fixture
def stored(broker: Broker):
    """Return a list of (topic, metadata, payloads), which gets one item for every SEND."""
    seen: list = []
    receive = broker.receive

    def note(link, frame):
        if frame.type == BaseCommand.SEND:
            entry = decode_entry(frame.data, frame.entry_offset)
            (topic,) = [
                each.topic for each in broker.asked[BaseCommand.PRODUCER] if each.producer_id == frame.command.send.producer_id
            ]
            parts = split_batch(entry.payload, entry.count) if entry.is_batch else [(entry.metadata, entry.payload)]
            seen.append((topic, entry.metadata, parts))
        receive(link, frame)

    broker.receive = note  # type: ignore[method-assign]
    return seen


# --- batching ---------------------------------------------------------------------------------------------------------


async def test_messages_are_batched_into_entries(catalog, client, stored):
    catalog.counts[TOPIC] = 0
    producer = await open_topic_producer(client, TOPIC, batching=Batching(max_messages=3))
    sent = [producer.send(b"%d" % number, properties=(("n", str(number)),)) for number in range(7)]
    receipts = await asyncio.gather(*sent)
    assert [[payload for _, payload in parts] for _, _, parts in stored] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]
    assert [(each.entry, each.batch_index, each.partition) for each in receipts[2:5]] == [(0, 2, -1), (1, 0, -1), (1, 1, -1)]
    assert stored[0][2][1][0].properties[0].value == "1"
    await producer.close()


async def test_bytes_end_a_batch_too(catalog, client, stored):
    catalog.counts[TOPIC] = 0
    producer = await open_topic_producer(client, TOPIC, batching=Batching(max_bytes=1000))
    await asyncio.gather(*[producer.send(bytes(400)) for _ in range(5)])
    assert [len(parts) for _, _, parts in stored] == [2, 2, 1]
    await producer.close()


async def test_a_batch_for_each_key(catalog, client, stored):
    catalog.counts[TOPIC] = 0
    producer = await open_topic_producer(client, TOPIC, batching=Batching(by_key=True))
    keys = ["a", "b", "a", None, "b", b"\xff", "a"]
    await asyncio.gather(*[producer.send(b"%d" % number, key=key) for number, key in enumerate(keys)])
    found = [(metadata.partition_key, [payload for _, payload in parts]) for _, metadata, parts in stored]
    assert found == [("a", [b"0", b"2", b"6"]), ("b", [b"1", b"4"]), ("", [b"3"]), ("/w==", [b"5"])]
    assert [metadata.sequence_id for _, metadata, _ in stored] == [0, 3, 5, 6], "no two batches overlap"
    await producer.close()


async def test_delayed_and_numbered_messages_are_sent_alone_and_in_order(catalog, client, stored):
    catalog.counts[TOPIC] = 0
    producer = await open_topic_producer(client, TOPIC)
    sent = [
        producer.send(b"0"),
        producer.send(None, deliver_at=77, event_time=5),
        producer.send(b"2"),
        producer.send(b"3", sequence_id=90),
    ]
    receipts = await asyncio.gather(*sent)
    assert [metadata.HasField("num_messages_in_batch") for _, metadata, _ in stored] == [True, False, True, False]
    later, own = stored[1][1], stored[3][1]
    assert (later.deliver_at_time, later.event_time, later.null_value, own.sequence_id) == (77, 5, True, 90)
    assert [each.batch_index for each in receipts] == [0, -1, 0, -1]
    await producer.close()


async def test_a_failed_batch_fails_all_its_messages(catalog, broker, client):
    def refuse(link, frame):
        asked = frame.command.send
        error = pb.CommandSendError(
            producer_id=asked.producer_id, sequence_id=asked.highest_sequence_id, error=pb.NotAllowedError, message="no"
        )
        link.send(send_error=error)

    catalog.counts[TOPIC] = 0
    broker.on[BaseCommand.SEND] = in_turn(refuse, broker.store)
    producer = await open_topic_producer(client, TOPIC, batching=Batching(max_messages=2))
    done = await asyncio.gather(*[producer.send(b"x") for _ in range(4)], return_exceptions=True)
    assert [isinstance(each, ClusterError) for each in done] == [True, True, False, False]
    await producer.close()


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "function"), [("java", java_string_hash), ("murmur3", lambda key: murmur3_32(key.encode()))])
async def test_keys_choose_partitions_and_other_messages_go_round_robin(catalog, client, stored, name, function):
    catalog.counts[TOPIC] = 3
    producer = await open_topic_producer(client, TOPIC, key_hash=name, batching=Batching(max_messages=2))
    keys = [f"key-{number}" for number in range(12)]
    receipts = await asyncio.gather(*[producer.send(b"x", key=key) for key in keys])
    assert [each.partition for each in receipts] == [function(key) % 3 for key in keys]
    receipts = await asyncio.gather(*[producer.send(b"x") for _ in range(12)])
    assert {each.partition for each in receipts} == {0, 1, 2}
    await producer.close()


async def test_new_partitions_are_sent_to(catalog, client):
    catalog.counts[TOPIC] = 1
    producer = await open_topic_producer(client, TOPIC, batching=Batching(max_messages=1), refresh_s=0.01)
    assert (await producer.send(b"x", key="b")).partition == 0
    catalog.counts[TOPIC] = 4
    await until(lambda: producer.partitions == 4)
    assert (await producer.send(b"x", key="b")).partition == java_string_hash("b") % 4 == 2
    catalog.counts[TOPIC] = 2
    await asyncio.sleep(0.05)
    assert producer.partitions == 4, "topics do not shrink"
    await producer.close()


async def test_a_missing_topic_is_fatal(catalog, client):
    with pytest.raises(ClusterError, match="create it") as caught:
        await open_topic_producer(client, TOPIC)
    assert caught.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="create it"):
        await open_topic_consumer(client, TOPIC, Subscription("s"))


async def test_new_partitions_are_consumed(catalog, broker, client):
    catalog.counts[TOPIC] = 2
    consumer = await open_topic_consumer(client, TOPIC, Subscription("s"), refresh_s=0.01)
    catalog.counts[TOPIC] = 3
    await until(lambda: len(consumer.consumers) == 3)
    for each in broker.asked[BaseCommand.SUBSCRIBE]:
        broker.link.message(each.consumer_id, 1, 0, each.topic.encode())
    found = {
        (taken.topic, entry.payload.decode(), entry.partition) for taken, entry in [await consumer.receive() for _ in range(3)]
    }
    assert found == {(f"{TOPIC}-partition-{index}", f"{TOPIC}-partition-{index}", index) for index in range(3)}
    await consumer.close()
    with pytest.raises(ClusterError, match="closed"):
        await consumer.receive()


async def test_concurrent_checks_consume_a_new_partition_once(catalog, broker, client):
    """The task that follows a pattern and the task that checks for partitions may find it at the same time."""
    catalog.counts[TOPIC] = 1
    consumer = await open_topic_consumer(client, TOPIC, Subscription("s"), refresh_s=60.0)
    catalog.counts[TOPIC] = 2
    await asyncio.gather(*(consumer._try_subscribe(TOPIC) for _ in range(2)))
    assert [asked.topic[-1] for asked in broker.asked[BaseCommand.SUBSCRIBE]] == ["0", "1"]
    await consumer.close()


async def test_consumers_are_served_round_robin(catalog, broker, client):
    catalog.counts[TOPIC] = 2
    consumer = await open_topic_consumer(client, TOPIC, Subscription("s"))
    for asked in broker.asked[BaseCommand.SUBSCRIBE]:
        for entry in range(3):
            broker.link.message(asked.consumer_id, 1, entry, b"x")
    assert [(await consumer.receive())[1].partition for _ in range(6)] == [0, 1, 0, 1, 0, 1]
    await consumer.close()


async def test_a_failed_consumer_is_reported(catalog, broker, client):
    catalog.counts[TOPIC] = 2
    consumer = await open_topic_consumer(client, TOPIC, Subscription("s"))
    broker.on[BaseCommand.SUBSCRIBE] = lambda link, frame: link.error(frame.command.subscribe.request_id, pb.AuthorizationError)
    broker.link.drop()
    with pytest.raises(ClusterError, match="AuthorizationError"):
        await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    await consumer.close()


# --- topics that come and go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watches", [True, False], ids=["watched", "polled"])
async def test_a_pattern_follows_the_topics(catalog, broker, client, watches):
    catalog.watches = watches
    first, second, other = (f"persistent://{NAMESPACE}/{name}" for name in ("logs-1", "logs-2", "other"))
    catalog.counts |= {first: 2, other: 0}
    refresh = 60.0 if watches else 0.01
    consumer = await open_pattern_consumer(client, NAMESPACE, f"{NAMESPACE}/logs-.*", Subscription("s"), refresh_s=refresh)
    assert sorted(consumer.consumers) == [f"{first}-partition-0", f"{first}-partition-1"]
    catalog.counts[second] = 0
    if watches:
        (asked,) = broker.asked[BaseCommand.WATCH_TOPIC_LIST]
        catalog.report(asked.watcher_id, [second], [])
    await until(lambda: second in consumer.consumers)
    del catalog.counts[first]
    if watches:
        catalog.report(asked.watcher_id, [], [f"{first}-partition-0", f"{first}-partition-1"])
    await until(lambda: sorted(consumer.consumers) == [second])
    assert bool(broker.asked[BaseCommand.WATCH_TOPIC_LIST]) is watches
    await consumer.close()
    assert bool(broker.asked[BaseCommand.WATCH_TOPIC_LIST_CLOSE]) is watches


@pytest.fixture
def close(broker):
    """Return a function that closes the consumers of a deleted topic, as a broker does."""

    def tell(topic: str) -> None:
        asked = [each for each in broker.asked[BaseCommand.SUBSCRIBE] if each.topic == topic][-1]
        command = pb.CommandCloseConsumer(consumer_id=asked.consumer_id, request_id=ids.NO_REQUEST)
        broker.link.send(close_consumer=command)

    return tell


async def test_a_pattern_does_not_recreate_deleted_topics(catalog, broker, client, close):
    gone, kept = (f"persistent://{NAMESPACE}/{name}" for name in ("gone", "kept"))
    catalog.counts = {gone: 0, kept: 0}
    consumer = await open_pattern_consumer(client, NAMESPACE, ".*", Subscription("s"))
    (watch,) = broker.asked[BaseCommand.WATCH_TOPIC_LIST]
    await until(lambda: len(broker.asked[BaseCommand.GET_TOPICS_OF_NAMESPACE]) == 2)  # the next check waits for an update
    ended = consumer.consumers[gone]
    del catalog.counts[gone]
    close(gone)
    await until(lambda: ended.end_error)
    assert catalog.names == [kept]
    broker.link.message(broker.asked[BaseCommand.SUBSCRIBE][1].consumer_id, 1, 0, b"x")
    taken, _ = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    assert taken.topic == kept
    catalog.report(watch.watcher_id, [], [gone])
    await until(lambda: list(consumer.consumers) == [kept])
    catalog.counts[gone] = 0
    catalog.report(watch.watcher_id, [gone], [])
    await until(lambda: gone in consumer.consumers)
    assert consumer.consumers[gone].end_error is None
    await consumer.close()


async def test_a_topic_recreated_between_two_checks_is_consumed_again(catalog, broker, client, close):
    catalog.counts = {TOPIC: 0}
    catalog.watches = False
    consumer = await open_pattern_consumer(client, NAMESPACE, ".*", Subscription("s"), refresh_s=0.05)
    ended = consumer.consumers[TOPIC]
    catalog.absent, listed = {TOPIC}, catalog.names
    broker.on[BaseCommand.GET_TOPICS_OF_NAMESPACE] = lambda link, frame: link.send(
        getTopicsOfNamespaceResponse=pb.CommandGetTopicsOfNamespaceResponse(
            request_id=frame.command.getTopicsOfNamespace.request_id, changed=False, topics_hash=topics_hash(listed)
        )
    )
    close(TOPIC)
    await until(lambda: ended.end_error)
    catalog.absent = set()
    await until(lambda: consumer.consumers.get(TOPIC, ended).end_error is None)
    assert ended.closed
    await consumer.close()


async def test_partitions_of_a_new_topic_are_consumed_as_they_are_created(catalog, broker, client):
    """The number of partitions is known before the partitions exist."""
    consumer = await open_pattern_consumer(client, NAMESPACE, ".*", Subscription("s"))
    (watch,) = broker.asked[BaseCommand.WATCH_TOPIC_LIST]
    parts = [f"{TOPIC}-partition-{index}" for index in range(3)]
    catalog.counts, catalog.absent = {TOPIC: 3}, {parts[1]}
    catalog.report(watch.watcher_id, [parts[0], parts[2]], [])
    await until(lambda: sorted(consumer.consumers) == [parts[0], parts[2]])
    catalog.absent = set()
    catalog.report(watch.watcher_id, [parts[1]], [])
    await until(lambda: sorted(consumer.consumers) == parts)
    await consumer.close()


async def test_a_list_of_impossibly_many_topics_is_refused(catalog, broker, client, monkeypatch):
    monkeypatch.setattr(limits, "MAX_TOPICS", 2)
    catalog.counts = {f"persistent://{NAMESPACE}/{name}": 0 for name in ("a", "b", "c")}
    text = "the server lists 3 topics and partitions in public/default; at most 2 are supported"
    with pytest.raises(ClusterError, match=text) as caught:
        await client.topics(NAMESPACE)
    assert caught.value.failure is Failure.FATAL
    watch = client.watch_topics(NAMESPACE, ".*")
    with pytest.raises(ClusterError, match=text):
        await watch.next_change()
    await watch.close()


async def test_pushed_topics_cannot_grow_without_limit(catalog, broker, client, monkeypatch):
    monkeypatch.setattr(limits, "MAX_TOPICS", 2)
    watch = client.watch_topics(NAMESPACE, ".*")
    assert await watch.next_change() == (set(), set())
    following = asyncio.ensure_future(watch.next_change())
    await until(lambda: watch.receives_pushes)
    with pytest.raises(RemoteProtocolError, match="the server lists 3 topics"):
        watch.on_push(pushed([f"persistent://{NAMESPACE}/{name}" for name in ("a", "b", "c")]))
    assert not watch._names
    following.cancel()
    await watch.close()


def pushed(names):
    update = pb.CommandWatchTopicUpdate(new_topics=names, topics_hash="x", watcher_id=0)
    return SimpleNamespace(command=BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))


async def test_a_lost_watch_is_renewed_and_reports_missed_changes(catalog, broker, client):
    one, two = (f"persistent://{NAMESPACE}/{name}" for name in ("one", "two"))
    catalog.counts[one] = 0
    watch = client.watch_topics(NAMESPACE, ".*")
    assert await watch.next_change() == ({one}, set())
    following = asyncio.ensure_future(watch.next_change())
    await until(lambda: watch.receives_pushes)
    catalog.counts = {two: 0}
    broker.link.drop()
    assert await asyncio.wait_for(following, PATIENCE_S) == ({two}, {one})
    assert len(broker.asked[BaseCommand.WATCH_TOPIC_LIST]) == 2
    assert broker.asked[BaseCommand.WATCH_TOPIC_LIST][1].topics_hash == topics_hash([one])
    await watch.close()


async def test_an_update_that_arrives_before_an_older_list_is_kept(catalog, broker, client):
    """A topic is deleted partition by partition, with an update for each.

    A list that is requested after the first update may still contain both.
    """
    gone, kept = (f"persistent://{NAMESPACE}/{name}" for name in ("gone", "kept"))
    catalog.counts = {gone: 2, kept: 0}
    watch = client.watch_topics(NAMESPACE, ".*")
    assert (await watch.next_change()).added == {gone, kept}
    held: list = []
    broker.on[BaseCommand.GET_TOPICS_OF_NAMESPACE] = lambda link, frame: held.append((link, frame))
    following = asyncio.ensure_future(watch.next_change())
    await until(lambda: held)
    for left in ({f"{gone}-partition-1": 0, kept: 0}, {kept: 0}):
        former, catalog.counts = set(catalog.names), left
        catalog.report(watch._id, [], sorted(former - set(catalog.names)))
    catalog.counts = {f"{gone}-partition-1": 0, kept: 0}
    catalog._list(*held.pop())
    broker.on[BaseCommand.GET_TOPICS_OF_NAMESPACE] = catalog._list
    catalog.counts = {kept: 0}
    assert await asyncio.wait_for(following, PATIENCE_S) == (set(), {gone})
    await watch.close()


async def test_a_pattern_that_is_too_long_watches_the_whole_namespace(catalog, broker, client):
    def at_most_50(link, frame):
        asked = frame.command.watchTopicList
        if len(asked.topics_pattern) > 50:
            link.error(asked.request_id, pb.NotAllowedError)
        else:
            catalog._watch(link, frame)

    broker.on[BaseCommand.WATCH_TOPIC_LIST] = at_most_50
    wanted, other = (f"persistent://{NAMESPACE}/{name}" for name in ("wanted" + "x" * 50, "other"))
    catalog.counts |= {wanted: 0, other: 0}
    watch = client.watch_topics(NAMESPACE, f"{NAMESPACE}/wanted{'x' * 50}")
    assert (await watch.next_change()).added == {wanted}
    assert watch.receives_pushes
    await watch.close()


async def test_without_watches_the_topic_list_is_polled(catalog, broker, client):
    broker.on[BaseCommand.WATCH_TOPIC_LIST] = lambda link, frame: link.error(
        frame.command.watchTopicList.request_id, pb.NotAllowedError
    )
    catalog.counts[TOPIC] = 0
    watch = client.watch_topics(NAMESPACE, f"{NAMESPACE}/.*", refresh_s=0.01)
    assert (await watch.next_change()).added == {TOPIC}
    catalog.counts["persistent://public/default/u"] = 0
    assert (await asyncio.wait_for(watch.next_change(), PATIENCE_S)).added == {"persistent://public/default/u"}
    assert not watch.receives_pushes
    assert [asked.topics_hash for asked in broker.asked[BaseCommand.GET_TOPICS_OF_NAMESPACE]][1] == topics_hash([TOPIC])
    await watch.close()


# --- schemas ----------------------------------------------------------------------------------------------------------


async def test_schemas_are_fetched_and_registered(broker, client):
    def fetch(**fields):
        def give(link, frame):
            link.send(getSchemaResponse=pb.CommandGetSchemaResponse(request_id=frame.command.getSchema.request_id, **fields))

        return give

    def register(**fields):
        def give(link, frame):
            request_id = frame.command.getOrCreateSchema.request_id
            link.send(getOrCreateSchemaResponse=pb.CommandGetOrCreateSchemaResponse(request_id=request_id, **fields))

        return give

    version = bytes(7) + b"\x02"
    broker.on[BaseCommand.GET_SCHEMA] = in_turn(
        fetch(schema=Schema(STRING.type, name="a/b/t").to_wire(), schema_version=version),
        fetch(error_code=pb.TopicNotFound),
        fetch(error_code=pb.AuthorizationError, error_message="no"),
    )
    found = await client.schema(TOPIC, version)
    assert found is not None
    assert (found.schema.name, found.version, broker.asked[BaseCommand.GET_SCHEMA][0].schema_version) == (
        "a/b/t",
        version,
        version,
    )
    assert await client.schema(TOPIC) is None
    with pytest.raises(ServerRefused):
        await client.schema(TOPIC)
    broker.on[BaseCommand.GET_OR_CREATE_SCHEMA] = in_turn(
        register(schema_version=version), register(error_code=pb.IncompatibleSchema, error_message="no")
    )
    assert await client.register_schema(TOPIC, STRING) == version
    with pytest.raises(ServerRefused, match="IncompatibleSchema") as caught:
        await client.register_schema(TOPIC, STRING)
    assert caught.value.failure is Failure.FATAL
    assert broker.asked[BaseCommand.LOOKUP] != [], "the owner is asked"
