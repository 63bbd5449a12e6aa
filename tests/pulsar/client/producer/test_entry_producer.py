"""The producer with a scripted broker: receipts, errors, reconnections."""

import asyncio

import pytest

from mqbridge.errors import ClusterError, Failure, RequestTimeout, TopicChanged
from mqbridge.net.waiting_sends import Caller, State
from mqbridge.pulsar.client.connection import broker_registration
from mqbridge.pulsar.client.connection.connection import MAX_SENDS_IN_FLIGHT
from mqbridge.pulsar.client.producer import entry_producer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, in_turn, scripted_client, silent, until

TOPIC = "persistent://public/default/t"


@pytest.fixture
def frames(broker: Broker):
    """Return the bytes of every SEND, in order."""
    seen: list[bytes] = []
    receive = broker.receive

    def note(link, frame):
        if frame.type == BaseCommand.SEND:
            seen.append(frame.data)
        receive(link, frame)

    broker.receive = note  # type: ignore[method-assign]
    return seen


def send(producer, *payloads: bytes, count: int = 1):
    return [producer.send(MessageMetadata(), payload, count) for payload in payloads]


def registered_with(**said):
    def answer(link, frame):
        asked = frame.command.producer
        success = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name, **said)
        link.send(producer_success=success)

    return answer


def send_error(code: int):
    def answer(link, frame):
        asked = frame.command.send
        highest = max(asked.sequence_id, asked.highest_sequence_id)
        send_error = pb.CommandSendError(producer_id=asked.producer_id, sequence_id=highest, error=code, message="no")
        link.send(send_error=send_error)

    return answer


async def test_receipts_arrive_in_order_with_entry_ids(broker: Broker, client):
    producer = client.producer(TOPIC)
    receipts = await asyncio.gather(*send(producer, b"a", b"b", b"c", count=5))
    assert [(receipt.ledger, receipt.entry, receipt.duplicate) for receipt in receipts] == [(1, n, False) for n in range(3)]
    asked = broker.asked[BaseCommand.SEND]
    assert [(one.sequence_id, one.highest_sequence_id, one.num_messages) for one in asked] == [(0, 4, 5), (5, 9, 5), (10, 14, 5)]
    assert producer.name == "made-up"
    await producer.close()
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1


async def test_a_receipt_reports_a_duplicate(broker: Broker, client):
    def duplicate(link, frame):
        asked = frame.command.send
        message_id = ids.message_id(-1, -1)
        receipt = pb.CommandSendReceipt(producer_id=asked.producer_id, sequence_id=asked.sequence_id, message_id=message_id)
        link.send(send_receipt=receipt)

    broker.on[BaseCommand.SEND] = duplicate
    producer = client.producer(TOPIC)
    (receipt,) = await asyncio.gather(*send(producer, b"a"))
    assert (receipt.duplicate, producer.duplicates) == (True, 1)
    await producer.close()


async def test_after_a_lost_connection_the_same_bytes_are_sent_again(broker: Broker, client, frames):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    sent = send(producer, b"a", b"b", b"c", count=7)
    await until(lambda: len(frames) == 3)
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    await asyncio.gather(*sent)
    assert frames[3:] == frames[:3]
    first, second = broker.asked[BaseCommand.PRODUCER]
    assert (first.epoch, first.HasField("producer_name"), first.user_provided_producer_name) == (0, False, False)
    assert (second.epoch, second.producer_name, second.user_provided_producer_name) == (1, "made-up", False)
    assert first.producer_id == second.producer_id
    await producer.close()


async def test_a_producer_closed_by_the_broker_looks_up_the_owner_again(broker: Broker, client, frames):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, name="mine")
    sent = send(producer, b"a", b"b")
    await until(lambda: len(frames) == 2)
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))
    await asyncio.gather(*sent)
    assert frames[2:] == frames[:2]
    assert len(broker.links) == 1
    assert len(broker.asked[BaseCommand.LOOKUP]) == 2
    assert [asked.epoch for asked in broker.asked[BaseCommand.PRODUCER]] == [0, 1]
    assert all(asked.user_provided_producer_name for asked in broker.asked[BaseCommand.PRODUCER])
    assert broker.asked[BaseCommand.CLOSE_PRODUCER] == []
    await producer.close()


async def test_an_out_of_order_receipt_causes_a_reconnection(broker: Broker, client, frames):
    def skip(link, frame):
        asked = frame.command.send
        receipt = pb.CommandSendReceipt(producer_id=asked.producer_id, sequence_id=asked.sequence_id + 1)
        link.send(send_receipt=receipt)

    broker.on[BaseCommand.SEND] = in_turn(skip, broker.store)
    producer = client.producer(TOPIC)
    await asyncio.gather(*send(producer, b"a", b"b"))
    assert len(broker.links) == 2
    assert frames[-2:] == frames[:2]
    await producer.close()


async def test_late_receipts_are_ignored(broker: Broker, client):
    producer = client.producer(TOPIC)
    await asyncio.gather(*send(producer, b"a", b"b"))
    broker.link.send(send_receipt=pb.CommandSendReceipt(producer_id=0, sequence_id=0))
    await asyncio.gather(*send(producer, b"c"))
    assert len(broker.links) == 1
    await producer.close()


@pytest.mark.parametrize("code", [pb.NotAllowedError, pb.ChecksumError])
async def test_a_refused_entry_fails_alone(broker: Broker, client, code):
    broker.on[BaseCommand.SEND] = in_turn(broker.store, send_error(code), broker.store)
    producer = client.producer(TOPIC)
    done = await asyncio.gather(*send(producer, b"a", b"b", b"c", count=3), return_exceptions=True)
    assert isinstance(done[1], ClusterError)
    assert done[1].failure is Failure.REFUSED
    assert [receipt.entry for receipt in (done[0], done[2])] == [0, 1]
    assert len(broker.asked[BaseCommand.PRODUCER]) == 1
    await producer.close()


@pytest.mark.parametrize("code", [pb.PersistenceError, pb.UnknownError, pb.ProducerBlockedQuotaExceededException])
async def test_other_send_errors_reopen_the_producer_and_send_again(broker: Broker, client, frames, code):
    broker.on[BaseCommand.SEND] = in_turn(broker.store, send_error(code), silent, broker.store)
    producer = client.producer(TOPIC)
    await asyncio.gather(*send(producer, b"a", b"b", b"c"))
    assert frames[3:] == frames[1:3]
    assert len(broker.links) == 1
    assert [asked.epoch for asked in broker.asked[BaseCommand.PRODUCER]] == [0, 1]
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1, "closed before it is opened again"
    await producer.close()


async def test_the_cause_of_repeated_send_errors_is_known_and_logged_once(broker: Broker, client, caplog):
    broker.on[BaseCommand.SEND] = send_error(pb.ProducerBlockedQuotaExceededException)
    producer = client.producer(TOPIC)
    (sent,) = send(producer, b"a")
    await until(lambda: producer.failing.failures >= 3)
    assert producer.failing.failing_since is not None
    assert "QuotaExceeded" in producer.failing.reason
    assert [record.levelname for record in caplog.records if "opening the producer again" in record.message] == ["WARNING"]
    broker.on[BaseCommand.SEND] = broker.store
    await asyncio.wait_for(sent, PATIENCE_S)
    assert producer.failing.failing_since is None
    await producer.close()


async def test_a_broker_that_does_not_accept_the_producer_is_logged_once_as_a_warning(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog
):
    """A namespace that demands encryption, or a quota: the broker refuses every registration, for as long as it lasts."""
    caplog.set_level("INFO")
    monkeypatch.setattr(broker_registration, "WARN_AFTER_S", 0.2)
    monkeypatch.setattr(broker_registration, "MAX_DELAY_S", 0.1)

    def refuse(link, frame):
        link.error(frame.command.producer.request_id, pb.ProducerBlockedQuotaExceededError)

    accept, broker.on[BaseCommand.PRODUCER] = broker.on[BaseCommand.PRODUCER], refuse
    client = scripted_client()
    producer = client.producer(TOPIC, ProducerSettings(retries_first_opening=True))
    (sent,) = send(producer, b"a")

    def levels() -> list[str]:
        return [record.levelname for record in caplog.records if "registering the producer failed" in record.message]

    await until(lambda: "WARNING" in levels())
    seen = producer.failing.failures
    await until(lambda: producer.failing.failures >= seen + 3)
    assert levels()[-1] == "WARNING"
    assert levels().count("WARNING") == 1
    assert "QuotaExceeded" in producer.failing.reason
    broker.on[BaseCommand.PRODUCER] = accept
    await asyncio.wait_for(sent, PATIENCE_S)
    assert producer.failing.failing_since is None
    await producer.close()
    await client.close()


async def test_a_terminated_topic_fails_everything(broker: Broker, client):
    broker.on[BaseCommand.SEND] = in_turn(send_error(pb.TopicTerminatedError), silent)
    producer = client.producer(TOPIC)
    done = await asyncio.gather(*send(producer, b"a", b"b"), return_exceptions=True)
    assert [error.failure for error in done] == [Failure.FATAL] * 2
    with pytest.raises(ClusterError):
        await producer.send(MessageMetadata(), b"c")
    await producer.close()


async def test_an_entry_beyond_the_brokers_limit_is_not_sent(broker: Broker, client):
    producer = client.producer(TOPIC)
    done = await asyncio.gather(*send(producer, b"a", bytes((1 << 20) + 1), b"b"), return_exceptions=True)
    assert isinstance(done[1], ClusterError)
    assert done[1].failure is Failure.REFUSED
    assert [asked.sequence_id for asked in broker.asked[BaseCommand.SEND]] == [0, 1]
    metadata = MessageMetadata()
    metadata.properties.add(key="k", value="v" * 20_000)
    with pytest.raises(ClusterError):
        await producer.send(metadata, bytes(1 << 20))
    await producer.close()


async def test_no_more_than_the_window_is_in_flight(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    sent = send(producer, *[b"x"] * (MAX_SENDS_IN_FLIGHT + 100))
    await until(lambda: len(broker.asked[BaseCommand.SEND]) == MAX_SENDS_IN_FLIGHT)
    await asyncio.sleep(0.01)
    assert len(broker.asked[BaseCommand.SEND]) == MAX_SENDS_IN_FLIGHT
    for sequence in range(50):
        broker.link.send(send_receipt=pb.CommandSendReceipt(producer_id=0, sequence_id=sequence))
    await until(lambda: len(broker.asked[BaseCommand.SEND]) == MAX_SENDS_IN_FLIGHT + 50)
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    await asyncio.gather(*sent)
    await producer.close()


async def test_an_expired_entry_fails_and_later_ones_are_stored(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, max_elapsed_s=0.1)
    with pytest.raises(RequestTimeout) as caught:
        await producer.send(MessageMetadata(), b"a")
    assert caught.value.failure is Failure.RETRY
    broker.on[BaseCommand.SEND] = broker.store
    await producer.send(MessageMetadata(), b"b")
    await producer.close()


async def test_with_fails_in_order_an_expired_entry_fails_all_later_ones(broker: Broker, client, frames):
    """Entries that a caller sends before it learns of the failure fail too; later ones are accepted."""
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, ProducerSettings(max_elapsed_s=0.5, fails_in_order=True))
    (first,) = send(producer, b"a")
    await until(lambda: frames)
    await asyncio.sleep(0.3)
    told = asyncio.get_running_loop().create_future()
    caller = Caller(owner=None, stream=None, told_by=(told,))
    later = [producer.send(MessageMetadata(), payload, caller=caller) for payload in (b"b", b"c")]
    unheard: list[asyncio.Future] = []
    later[1].add_done_callback(lambda _: unheard.extend(send(producer, b"d")))
    with pytest.raises(RequestTimeout):
        await first
    assert [type(one.exception()) for one in later if one.done()] == [RequestTimeout] * 2, "at once, long before their own time"
    await until(lambda: unheard and unheard[0].done())
    assert isinstance(unheard[0].exception(), RequestTimeout)
    broker.on[BaseCommand.SEND] = broker.store
    told.set_result(None)
    await until(lambda: producer._sends.intake is State.ACCEPTING)
    await asyncio.gather(*send(producer, b"a again"))
    assert len(frames) == 4, "a, b, c, and a again"
    await producer.close()


async def test_a_name_in_use_is_fatal_after_the_opening_deadline(broker: Broker):
    def busy(link, frame):
        link.error(frame.command.producer.request_id, pb.ProducerBusy)

    broker.on[BaseCommand.PRODUCER] = busy
    client = scripted_client(operation=1.0)
    producer = client.producer(TOPIC, name="mine")
    with pytest.raises(ClusterError, match="ProducerBusy") as caught:
        await producer.send(MessageMetadata(), b"a")
    assert caught.value.failure is Failure.FATAL
    assert len(broker.asked[BaseCommand.PRODUCER]) > 1
    await producer.close()
    await client.close()


async def test_an_opened_producer_reconnects_without_a_deadline(broker: Broker):
    client = scripted_client(operation=0.05)
    producer = client.producer(TOPIC)
    await producer.opened()
    broker.unreachable = {"broker"}
    broker.link.drop()
    (sent,) = send(producer, b"a")
    await asyncio.sleep(0.5)
    assert not sent.done()
    broker.unreachable = set()
    await asyncio.wait_for(sent, PATIENCE_S)
    await producer.close()
    await client.close()


async def test_an_outage_logs_one_warning_and_one_line_and_counts_retries(broker: Broker, client, frames, caplog):
    caplog.set_level("INFO")
    broker.on[BaseCommand.SEND] = silent
    producers = [client.producer(f"{TOPIC}-{number}") for number in range(5)]
    sent = [one for producer in producers for one in send(producer, b"a", b"b")]
    await until(lambda: len(frames) == 10)
    connectivity = client._pool.connectivity
    broker.unreachable = {"broker"}
    broker.link.drop()
    await until(lambda: connectivity.failures > 3)
    assert connectivity.unreachable_s is not None
    broker.on[BaseCommand.SEND] = broker.store
    broker.unreachable = set()
    await asyncio.gather(*sent)
    assert (connectivity.unreachable_s, connectivity.reconnects, connectivity.retries) == (None, 1, 10)
    lines = [(record.levelname, record.name) for record in caplog.records]
    assert lines == [("WARNING", "mqbridge.net.connectivity"), ("INFO", "mqbridge.net.connectivity")]
    await asyncio.gather(*(producer.close() for producer in producers))


async def test_a_producer_closed_by_the_broker_while_opening_tries_again(broker: Broker, client):
    def close_first(link, frame):
        link.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))
        broker._producer(link, frame)

    broker.on[BaseCommand.PRODUCER] = in_turn(close_first, broker._producer)
    producer = client.producer(TOPIC)
    await asyncio.gather(*send(producer, b"a"))
    assert len(broker.asked[BaseCommand.PRODUCER]) == 2
    await producer.close()


async def test_closing_waits_for_receipts_but_not_for_ever(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    (sent,) = send(producer, b"a")
    await producer.opened()
    await producer.close(0.05)
    with pytest.raises(ClusterError, match="closed"):
        await sent
    with pytest.raises(ClusterError, match="closed"):
        await producer.send(MessageMetadata(), b"b")


async def test_a_receipt_resets_the_error_backoff(broker: Broker, client):
    broker.on[BaseCommand.SEND] = in_turn(send_error(pb.PersistenceError), broker.store)
    producer = client.producer("persistent://public/default/t")
    await producer.send(MessageMetadata(), b"one")
    assert producer.registrations == 2
    assert not producer._error_backoff.has_failed
    await producer.close()


# --- entries that end without a receipt ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["withdrawn", "expired"])
async def test_the_sequence_id_of_an_entry_that_ended_in_flight_is_not_taken_for_another_senders(
    broker: Broker, client, monkeypatch: pytest.MonkeyPatch, how: str
):
    """The broker may have stored it."""
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    max_elapsed_s = 0.05 if how == "expired" else None
    producer = client.producer(TOPIC, ProducerSettings("mine", sole_sender=True, max_elapsed_s=max_elapsed_s))
    broker.on[BaseCommand.PRODUCER] = registered_with(last_sequence_id=-1)
    broker.on[BaseCommand.SEND] = silent
    sent = producer.send(MessageMetadata(), b"x", owner="a")
    await until(lambda: broker.asked[BaseCommand.SEND])
    if how == "withdrawn":
        producer.withdraw({"a"})
    else:
        await until(sent.done)
    broker.on[BaseCommand.PRODUCER] = registered_with(last_sequence_id=0)
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    await until(lambda: producer.registrations == 2)
    assert isinstance(sent.exception(), ClusterError)
    await asyncio.wait_for(producer.send(MessageMetadata(), b"y"), PATIENCE_S)
    assert [asked.sequence_id for asked in broker.asked[BaseCommand.SEND]] == [0, 1]
    await producer.close()


async def test_sequence_ids_follow_the_last_one_that_the_broker_has(broker: Broker, client):
    broker.on[BaseCommand.PRODUCER] = registered_with(last_sequence_id=41)
    producer = client.producer(TOPIC, ProducerSettings("mine", sole_sender=True))
    await producer.opened()
    broker.link.drop()
    await until(lambda: producer.registrations == 2)  # it is the id from before the first registration, not of another sender
    await asyncio.wait_for(producer.send(MessageMetadata(), b"x"), PATIENCE_S)
    assert [asked.sequence_id for asked in broker.asked[BaseCommand.SEND]] == [42]
    await producer.close()


@pytest.mark.parametrize("how", ["withdrawn while it waits", "withdrawn in flight", "expired"])
async def test_flush_ends_with_the_last_entry(broker: Broker, client, monkeypatch: pytest.MonkeyPatch, how: str):
    """However it ends."""
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    producer = client.producer(TOPIC, ProducerSettings(max_elapsed_s=0.05 if how == "expired" else None))
    broker.on[BaseCommand.SEND] = silent
    if how == "withdrawn while it waits":
        broker.on[BaseCommand.PRODUCER] = silent
    else:
        await producer.opened()
    sent = producer.send(MessageMetadata(), b"x", owner="a")
    flushed = asyncio.ensure_future(producer.flush())
    await asyncio.sleep(0)
    assert not flushed.done()
    if how != "expired":
        producer.withdraw({"a"})
    if how == "withdrawn in flight":
        broker.on[BaseCommand.PRODUCER] = silent
        broker.link.drop()
    elif how == "withdrawn while it waits":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert flushed.done()
    await asyncio.wait_for(flushed, PATIENCE_S)
    assert isinstance(sent.exception(), ClusterError)
    await producer.close(0.01)


# --- the topic was deleted ------------------------------------------------------------------------------------------


PARTITION = f"{TOPIC}-partition-2"


def close(broker: Broker) -> None:
    """Close the first producer, as a broker does when a topic is unloaded or deleted."""
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))


@pytest.mark.parametrize(
    ("count", "found"), [(None, "does not exist any more"), (2, "partition 2 is gone"), (0, "is not partitioned now")]
)
async def test_a_reconnecting_producer_does_not_create_a_partition_of_a_deleted_topic(
    broker: Broker, client, count: int | None, found: str
):
    broker.topics[TOPIC] = 3
    producer = client.producer(PARTITION)
    await producer.opened()
    broker.on[BaseCommand.SEND] = silent
    (sent,) = send(producer, b"a")
    await until(lambda: broker.asked[BaseCommand.SEND])
    broker.topics[TOPIC] = count
    close(broker)
    with pytest.raises(TopicChanged, match=f"topic {TOPIC} .*{found}"):
        async with asyncio.timeout(PATIENCE_S):
            await sent
    assert len(broker.asked[BaseCommand.PRODUCER]) == 1
    assert not any(asked.metadata_auto_creation_enabled for asked in broker.asked[BaseCommand.PARTITIONED_METADATA])
    await producer.close()


@pytest.mark.parametrize("is_partition", [True, False])
async def test_a_producer_of_a_topic_that_must_exist_does_not_create_it(broker: Broker, client, is_partition: bool):
    """A partition named like a partition of another topic may also be a topic by itself."""
    broker.topics |= {TOPIC: 3, PARTITION: 0}
    broker.topics[TOPIC if is_partition else PARTITION] = None
    producer = client.producer(PARTITION, ProducerSettings(is_partition=is_partition, retries_first_opening=True))
    with pytest.raises(TopicChanged, match="create it again"):
        async with asyncio.timeout(PATIENCE_S):
            await producer.opened()
    assert broker.asked[BaseCommand.PRODUCER] == []
    await producer.close()


async def test_a_topic_that_is_partitioned_meanwhile_gets_no_more_messages_by_its_old_name(broker: Broker, client):
    producer = client.producer(TOPIC)
    await producer.opened()
    broker.topics[TOPIC] = 4
    close(broker)
    with pytest.raises(TopicChanged, match="is partitioned now, with 4 partitions"):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*send(producer, b"a"))
    await producer.close()


async def test_a_producer_that_may_create_its_topic_creates_it_again(broker: Broker, client):
    producer = client.producer(TOPIC)
    await producer.opened()
    broker.topics[TOPIC] = None
    close(broker)
    await until(lambda: producer.registrations == 2)
    await asyncio.gather(*send(producer, b"a"))
    await producer.close()


async def test_a_non_persistent_topic_that_is_not_in_use_is_not_asked_for(broker: Broker, client):
    topic = "non-persistent://public/default/t"
    broker.topics[topic] = None
    producer = client.producer(topic, ProducerSettings(is_partition=False))
    await asyncio.gather(*send(producer, b"a"))
    await producer.close()


async def test_nothing_is_sent_to_a_topic_that_is_deleted_just_before_it_is_registered(broker: Broker, client):
    """The PRODUCER has created a partition by itself: the producer is closed there, so that the broker can delete it."""
    broker.topics[TOPIC] = 3
    producer = client.producer(PARTITION)
    await producer.opened()

    def delete(link, frame):
        broker.topics[TOPIC] = None
        broker._producer(link, frame)

    broker.on[BaseCommand.PRODUCER] = delete
    close(broker)
    with pytest.raises(TopicChanged, match="does not exist any more"):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*send(producer, b"a"))
    assert broker.asked[BaseCommand.SEND] == []
    await producer.close()
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1


async def test_a_failed_check_after_the_registration_is_repeated_with_a_new_registration(broker: Broker, client):
    broker.topics[TOPIC] = 3
    producer = client.producer(PARTITION)
    await producer.opened()

    def not_ready(link, frame):
        response = pb.CommandPartitionedTopicMetadataResponse(request_id=frame.command.partitionMetadata.request_id)
        response.response, response.error = response.Failed, pb.MetadataError
        link.send(partitionMetadataResponse=response)

    broker.on[BaseCommand.PARTITIONED_METADATA] = in_turn(broker.describe, not_ready, broker.describe)
    close(broker)
    await asyncio.gather(*send(producer, b"a"))
    assert (len(broker.asked[BaseCommand.PRODUCER]), len(broker.asked[BaseCommand.CLOSE_PRODUCER])) == (3, 1)
    await producer.close()


@pytest.mark.parametrize("command", [BaseCommand.PRODUCER, BaseCommand.LOOKUP])
async def test_a_broker_that_creates_no_topics_reports_a_deleted_one(broker: Broker, client, command: int):
    """A topic that is being deleted still has its metadata; the broker refuses its producers."""
    producer = client.producer(TOPIC, ProducerSettings(is_partition=False))
    await producer.opened()

    def missing(link, frame):
        if command == BaseCommand.PRODUCER:
            link.error(frame.command.producer.request_id, pb.TopicNotFound)
        else:
            response = pb.CommandLookupTopicResponse(request_id=frame.command.lookupTopic.request_id)
            response.response, response.error, response.message = response.Failed, pb.TopicNotFound, "no"
            link.send(lookupTopicResponse=response)

    broker.on[command] = missing
    close(broker)
    with pytest.raises(TopicChanged, match="TopicNotFound"):
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*send(producer, b"a"))
    await producer.close()
