"""Every error code of a broker for every request: the client follows the table in `wire/codes.py`."""

import asyncio
from collections.abc import Callable

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import codes
from mqbridge.pulsar.wire.codes import Code
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, Link, found, in_turn, success, until

TOPIC = "persistent://public/default/t"
PASSES = (Failure.RETRY, Failure.REFRESH)
EVERY_CODE = pytest.mark.parametrize("code", codes.TABLE, ids=lambda code: code.name)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection.broker_registration", "connection.lookup", "producer.entry_producer"):
        monkeypatch.setattr(f"mqbridge.pulsar.client.{module}.FIRST_DELAY_S", 0.001)
    monkeypatch.setattr("mqbridge.pulsar.client.consumer.acknowledger.ACK_DELAY_S", 0.001)


def refuses(code: Code, request: Callable[[Frame], int]) -> Callable[[Link, Frame], None]:
    return lambda link, frame: link.error(request(frame), code.number)


def asked(broker: Broker, command: int) -> int:
    return len(broker.asked[command])


def test_each_code_has_a_row():
    assert {code.number for code in codes.TABLE} == set(pb.ServerError.values())
    assert codes.of(99).failure is codes.of(99).sending is codes.of(99).subscribing is Failure.RETRY


# --- producers --------------------------------------------------------------------------------------------------------


@EVERY_CODE
@pytest.mark.parametrize("before", [False, True], ids=["first", "again"])
async def test_opening_a_producer(broker: Broker, client, code: Code, before: bool):
    """Whether the producer was open before makes no difference: a producer that has ended fails its entries."""
    no = refuses(code, lambda frame: frame.command.producer.request_id)
    broker.on[BaseCommand.PRODUCER] = in_turn(*[broker._producer] * before, no, broker._producer)
    producer = client.producer(TOPIC)
    if before:
        await producer.opened()
        broker.link.drop()
        await until(lambda: asked(broker, BaseCommand.PRODUCER) == 2)
    if code.failure in PASSES:
        assert (await producer.send(MessageMetadata(), b"x")).entry == 0
        assert asked(broker, BaseCommand.PRODUCER) == 2 + before
    else:
        with pytest.raises(ServerRefused, match=code.name) as caught:
            await producer.send(MessageMetadata(), b"x")
        assert (caught.value.failure, caught.value.code) == (Failure.FATAL, code.number)
        assert asked(broker, BaseCommand.PRODUCER) == 1 + before
    await producer.close()


@EVERY_CODE
async def test_sending(broker: Broker, client, code: Code):
    def no(link: Link, frame: Frame) -> None:
        sequence = frame.command.send.sequence_id
        link.send(send_error=pb.CommandSendError(producer_id=0, sequence_id=sequence, error=code.number, message="no"))

    broker.on[BaseCommand.SEND] = in_turn(no, broker.store)
    producer = client.producer(TOPIC)
    first = producer.send(MessageMetadata(), b"x")
    if code.sending is Failure.RETRY:
        assert (await first).entry == 0
        assert (asked(broker, BaseCommand.PRODUCER), asked(broker, BaseCommand.CLOSE_PRODUCER)) == (2, 1)
    else:
        with pytest.raises(ClusterError, match=code.name) as caught:
            await first
        assert caught.value.failure is code.sending
        assert asked(broker, BaseCommand.PRODUCER) == 1
    if code.sending is Failure.FATAL:
        with pytest.raises(ClusterError, match=code.name):
            await producer.send(MessageMetadata(), b"y")
    else:
        await producer.send(MessageMetadata(), b"y")
    await producer.close()


# --- lookups ----------------------------------------------------------------------------------------------------------


@EVERY_CODE
async def test_looking_up(broker: Broker, client, code: Code):
    def no(link: Link, frame: Frame) -> None:
        found(link, frame, "", response=pb.CommandLookupTopicResponse.Failed, error=code.number, message="no")

    broker.on[BaseCommand.LOOKUP] = in_turn(no, broker.on[BaseCommand.LOOKUP])
    producer = client.producer(TOPIC)
    if code.failure in PASSES:
        await producer.opened()
    else:
        with pytest.raises(ServerRefused, match=code.name) as caught:
            await producer.opened()
        assert caught.value.failure is Failure.FATAL
    assert asked(broker, BaseCommand.LOOKUP) == 1 + (code.failure in PASSES)
    await producer.close()


# --- consumers --------------------------------------------------------------------------------------------------------


@EVERY_CODE
async def test_subscribing_for_the_first_time(broker: Broker, client, code: Code):
    broker.on[BaseCommand.SUBSCRIBE] = in_turn(refuses(code, lambda frame: frame.command.subscribe.request_id), success)
    if code.failure in PASSES:
        await (await client.consumer(TOPIC, Subscription("s"))).close()
    else:
        with pytest.raises(ServerRefused, match=code.name) as caught:
            await client.consumer(TOPIC, Subscription("s"))
        assert (caught.value.failure, caught.value.code) == (code.failure, code.number)
    assert asked(broker, BaseCommand.SUBSCRIBE) == 1 + (code.failure in PASSES)


@EVERY_CODE
async def test_subscribing_again(broker: Broker, client, code: Code):
    no = refuses(code, lambda frame: frame.command.subscribe.request_id)
    broker.on[BaseCommand.SUBSCRIBE] = in_turn(success, no, success)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.drop()
    if code.subscribing in PASSES:
        await until(lambda: consumer.registrations == 2)
        broker.link.message(0, 1, 0, b"x")
        assert (await consumer.receive()).entry == 0
    else:
        with pytest.raises(ServerRefused, match=code.name) as caught:
            await consumer.receive()
        assert (caught.value.failure, caught.value.code) == (Failure.FATAL, code.number)
    assert asked(broker, BaseCommand.SUBSCRIBE) == 2 + (code.subscribing in PASSES)
    await consumer.close()


@EVERY_CODE
async def test_seeking(broker: Broker, client, code: Code):
    """The consumer continues in any case; if the result of the seek is unknown, the broker's cursor decides."""
    broker.on[BaseCommand.SEEK] = in_turn(refuses(code, lambda frame: frame.command.seek.request_id), success)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    if code.failure in PASSES:
        await consumer.seek((1, 5))
    else:
        with pytest.raises(ServerRefused, match=code.name) as caught:
            await consumer.seek((1, 5))
        assert caught.value.failure is code.failure
    assert asked(broker, BaseCommand.SEEK) == 1 + (code.failure in PASSES)
    await until(lambda: consumer.registrations == 2)
    broker.link.message(0, 1, 5, b"x")
    assert (await asyncio.wait_for(consumer.receive(), PATIENCE_S)).entry == 5
    await consumer.close()


@EVERY_CODE
@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Shared], ids=["cumulative", "individual"])
async def test_acknowledging(broker: Broker, client, code: Code, kind: int):
    """A failed acknowledgement is sent again: an individual one soon, a cumulative one with the next `confirm_acks`."""

    def answer(link: Link, frame: Frame) -> None:
        ack = frame.command.ack
        if ack.HasField("request_id"):
            error = code.number if asked(broker, BaseCommand.ACK) == 1 else None
            response = pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id, error=error, message="no")
            link.send(ackResponse=response)

    broker.on[BaseCommand.ACK] = answer
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    broker.link.message(0, 1, 0, b"x")
    entry_id = (await consumer.receive()).id
    consumer.acknowledge(entry_id) if kind == Types.Shared else consumer.acknowledge_up_to(entry_id)
    with pytest.raises(ServerRefused, match=code.name) as caught:
        await consumer.confirm_acks()
    assert (caught.value.failure, caught.value.code) == (code.failure, code.number)
    if kind == Types.Exclusive:
        await consumer.confirm_acks()
    await until(lambda: asked(broker, BaseCommand.ACK) == 2)
    first, second = broker.asked[BaseCommand.ACK]
    assert first.message_id == second.message_id
    await consumer.close()
