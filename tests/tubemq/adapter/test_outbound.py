"""An outbound over a scripted Broker: order when messages are abandoned, and withdrawn sends."""

import asyncio
from datetime import UTC
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.tubemq.adapter.outbound import TubeMQOutbound
from mqbridge.tubemq.client.producer import broker_reconnector
from tests.patience import PATIENCE_S
from tests.tubemq.client.producer.test_partition_sender import FakeBroker, sender_to


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reconnector, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(broker_reconnector, "MAX_RETRY_S", 0.002)


async def _last_stored(*_: Any) -> dict[int, tuple[int, ...]]:
    return {}


def outbound_to(broker: FakeBroker, **settings: Any) -> TubeMQOutbound:
    sender = sender_to(broker, **settings)
    sender.ordered = settings.get("ordered", True)
    return TubeMQOutbound(sender, OutboundSpec("demo", stamp_origin=False), UTC, _last_stored)


def share(*bodies: bytes) -> Share:
    messages = [Message(body) for body in bodies]
    return Share(Batch(Partition("c", "t", "0", 0), messages, count=len(messages), size=1, first=(0,), next=(1,)))


def kinds(receipt: Receipt) -> list[Failure]:
    return [failure.failure_kind for failure in receipt.failures]


def stored(broker: FakeBroker) -> list[bytes]:
    return [data.rpartition(b"\0")[2] for data in broker.stored]


@pytest.mark.parametrize("outcome", [RequestTimeout("silent"), ConnectionLost("cut"), 419, 503], ids=str)
async def test_no_later_message_is_stored_after_one_is_abandoned_by_time(outcome: Exception | int) -> None:
    """After a message is abandoned by `max_elapsed`, no later message of its partition is stored until all receipts are set."""
    broker = FakeBroker(200, *[outcome] * 200)
    outbound = outbound_to(broker, max_elapsed_s=0.01)
    sends = [outbound.send(0, share(b"0", b"1", b"2")), outbound.send(0, share(b"3", b"4")), outbound.send(1, share(b"other"))]

    def at_once(_: Any) -> None:  # from now on all would be well
        broker.plan.clear()

    sends[0].add_done_callback(at_once)
    first, second, other = await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_S)
    assert [failure.index for failure in first.failures] == [1, 2]
    assert kinds(first) == [Failure.RETRY] * 2
    assert kinds(second) == [Failure.RETRY] * 2
    assert stored(broker)[0] == b"0"
    assert not {b"1", b"2", b"3", b"4"} & set(stored(broker)), stored(broker)
    assert not (await outbound.send(0, share(b"1"))).failures
    assert other.failures == [] or kinds(other) == [Failure.RETRY]
    await outbound.close()


async def test_a_refused_message_fails_alone() -> None:
    broker = FakeBroker(200, 400, 200)
    outbound = outbound_to(broker)
    receipt = await outbound.send(0, share(b"0", b"1", b"2"))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(1, Failure.REFUSED)]
    assert stored(broker) == [b"0", b"2"]
    await outbound.close()


async def test_withdrawn_queued_messages_fail_and_other_sends_continue() -> None:
    """One request of the partition is in flight; two sends of one source, and one of another between them, are queued."""
    broker = FakeBroker()
    broker.held = []
    outbound = outbound_to(broker)
    ours, theirs = [outbound.send(0, share(b"0", b"1"))], [outbound.send(0, share(b"x"))]
    ours.append(outbound.send(0, share(b"2", b"3")))
    await asyncio.sleep(0)
    outbound.withdraw(ours)
    receipt = await asyncio.wait_for(ours[1], PATIENCE_S)
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(0, Failure.RETRY), (1, Failure.RETRY)]
    assert not ours[0].done(), "its first message is on its way"
    while broker.held or not theirs[0].done():
        broker.held.pop(0)()
        await asyncio.sleep(0)
    assert [failure.index for failure in (await ours[0]).failures] == [1]
    assert not (await theirs[0]).failures
    assert stored(broker) == [b"0", b"x"]
    outbound.withdraw([*ours, *theirs])  # done: ignored
    assert not outbound._pending
    await outbound.close()


@pytest.mark.parametrize("outcome", [RequestTimeout("silent"), ConnectionLost("cut"), 419], ids=str)
async def test_withdrawn_messages_in_flight_are_not_retried(outcome: Exception | int) -> None:
    broker = FakeBroker(outcome, 200)
    broker.held = []
    outbound = outbound_to(broker)
    ours, theirs = outbound.send(0, share(b"0")), outbound.send(0, share(b"x"))
    await asyncio.sleep(0)
    outbound.withdraw([ours])
    assert not ours.done()
    broker.held.pop(0)()
    assert kinds(await asyncio.wait_for(ours, PATIENCE_S)) == [Failure.RETRY]
    while not theirs.done():
        await asyncio.sleep(0.001)
        if broker.held:
            broker.held.pop(0)()
    assert not (await theirs).failures
    assert stored(broker) == [b"x"]
    await outbound.close()


async def test_withdrawn_messages_that_wait_for_a_retry_fail() -> None:
    """The Broker is unreachable, so all messages wait for the reconnection; then only those not withdrawn are stored."""
    broker = FakeBroker()
    broker.unreachable = 10**9
    outbound = outbound_to(broker)
    ours = [outbound.send(0, share(b"%d" % n)) for n in range(60)]
    theirs = outbound.send(0, share(b"x"))
    await asyncio.sleep(0.01)
    outbound.withdraw(ours)
    for receipt in await asyncio.wait_for(asyncio.gather(*ours), PATIENCE_S):
        assert kinds(receipt) == [Failure.RETRY]
    broker.unreachable = 0
    assert not (await asyncio.wait_for(theirs, PATIENCE_S)).failures
    assert stored(broker) == [b"x"]
    assert outbound._sender.queued_bytes == 0
    again = await asyncio.wait_for(outbound.send(0, share(b"1")), PATIENCE_S)
    assert not again.failures
    await outbound.close()


async def test_withdrawn_messages_refused_among_many_in_flight_fail() -> None:
    """A refused message waits for the responses to the messages in flight before it would be retried."""
    broker = FakeBroker(419, 200, 200)
    broker.held = []
    outbound = outbound_to(broker, ordered=False, in_flight=3)
    ours, theirs = outbound.send(0, share(b"0", b"1")), outbound.send(0, share(b"x"))
    await asyncio.sleep(0)
    broker.held.pop(0)()
    outbound.withdraw([ours])
    assert not ours.done()
    broker.held.pop(0)()
    assert [failure.index for failure in (await asyncio.wait_for(ours, PATIENCE_S)).failures] == [0]
    broker.held.pop(0)()
    assert not (await asyncio.wait_for(theirs, PATIENCE_S)).failures
    assert stored(broker) == [b"1", b"x"]
    await outbound.close()


async def test_closing_after_a_withdrawal_does_not_fail_messages_in_flight() -> None:
    broker = FakeBroker()
    broker.held = []
    outbound = outbound_to(broker)
    ours = outbound.send(0, share(b"0", b"1"))
    await asyncio.sleep(0)
    outbound.withdraw([ours])
    await outbound.close(asyncio.get_running_loop().time())
    broker.held.pop(0)()
    assert [failure.index for failure in (await asyncio.wait_for(ours, PATIENCE_S)).failures] == [1]
    with pytest.raises(ClusterError):
        await outbound.send(0, share(b"late"))


async def test_close_fails_messages_in_flight_and_ignores_their_responses() -> None:
    """The Broker no longer responds: no receipt stays pending after the outbound is closed."""
    broker = FakeBroker()
    broker.held = []
    outbound = outbound_to(broker)
    sends = [outbound.send(0, share(b"0")), outbound.send(0, share(b"1"))]
    await asyncio.sleep(0)
    await outbound.close(asyncio.get_running_loop().time())
    for send in sends:
        assert send.done()
        assert isinstance(error := send.exception(), ClusterError)
        assert error.failure is Failure.FATAL
    while broker.held:
        broker.held.pop(0)()
        await asyncio.sleep(0)
    assert not outbound._pending


@pytest.mark.parametrize(("sender", "times"), [("somebody", 1), (None, 2)])
async def test_with_a_sender_a_lost_response_is_reported_without_a_retry(sender: str | None, times: int) -> None:
    broker = FakeBroker(ConnectionLost("cut"))
    outbound = outbound_to(broker, max_elapsed_s=OutboundSpec("demo", max_elapsed_s=10.0, sender=sender).resend_s)
    receipt = await asyncio.wait_for(outbound.send(0, share(b"0")), PATIENCE_S)
    assert len(broker.requests) == times
    assert kinds(receipt) == ([Failure.RETRY] if sender else [])


# --- whole shares -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Message(b"x", defect="bad checksum"), "bad checksum"),
        (Message(b"x", msg_type="\ud800"), "not valid Unicode"),
        (Message(bytes((1 << 20) + (10 << 10) + 1)), "at most 1058816 are allowed"),
    ],
    ids=["defect", "text", "size"],
)
async def test_a_whole_share_with_a_message_that_cannot_be_stored_sends_nothing(bad: Message, reason: str) -> None:
    broker = FakeBroker(200)
    outbound = TubeMQOutbound(sender_to(broker), OutboundSpec("demo", stamp_origin=False, whole_shares=True), UTC, _last_stored)
    receipt = await outbound.send(0, Share(Batch.of([Message(b"0"), bad, Message(b"2"), bad])))
    assert kinds(receipt) == [Failure.REFUSED] * 4
    assert [reason in failure.reason for failure in receipt.failures] == [True] * 4
    assert [failure.reason.startswith("message 1 of its batch") for failure in receipt.failures] == [True, False, True, False]
    assert broker.stored == []
    assert not (await outbound.send(0, Share(Batch.of([Message(b"3")])))).failures
    assert stored(broker) == [b"3"]
    await outbound.close()


async def test_resume_searches_only_the_wanted_partitions() -> None:
    searched: list[object] = []

    async def last_stored(*arguments: Any) -> dict[int, tuple[int, ...]]:
        searched.append(arguments[1])
        return {}

    outbound = TubeMQOutbound(sender_to(FakeBroker()), OutboundSpec("demo"), UTC, last_stored)
    source = Partition("c", "t", "0", 0)
    await outbound.resume(source)
    await outbound.resume(source, None, [1])
    assert searched == [{0: "1:0", 1: "1:1"}, {1: "1:1"}]
    await outbound.close()
