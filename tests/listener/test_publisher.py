"""Every publication is answered once and in order; what the backing never accepts becomes a dead letter."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError, Failure
from mqbridge.listener.limits import InFlightBytes
from mqbridge.listener.publisher import Publisher, State, Stored
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker
from tests.patience import PATIENCE_S

PRODUCER = Partition("app", "producer-1", "0", 0)


class Bench:
    """A publisher into a memory topic, and the answers that it gave, in their order."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster, self.broker = cluster, cluster.broker
        self.in_flight = InFlightBytes(100)
        self.answers: list[tuple[str, Stored]] = []
        self.dead_letters_opened = 0
        self.publisher: Publisher

    async def open(self, *, in_order: bool = True, sender: str | None = None) -> None:
        outbound = await self.cluster.outbound(
            OutboundSpec("t", whole_shares=True, sender=sender, stamp_origin=sender is not None)
        )
        last = None
        if sender is not None:
            position = (await outbound.resume(PRODUCER)).get(0)
            last = -1 if position is None else position[0]
        self.publisher = Publisher(
            "memory/t", outbound, self.in_flight, self._open_dead_letters, in_order=in_order, last_sequence=last
        )
        self._outbound = outbound

    async def _open_dead_letters(self) -> DeadLetters:
        self.dead_letters_opened += 1
        return DeadLetters("app", await self.cluster.outbound(OutboundSpec("dead")), "memory/dead")

    def publish(self, *payloads: str, sequence: int | None = None) -> None:
        messages = [
            Message(payload.encode(), position=() if sequence is None else (sequence + index,))
            for index, payload in enumerate(payloads)
        ]
        batch = Batch.of(messages, None if sequence is None else PRODUCER)
        self.publisher.publish(0, batch, lambda stored: self.answers.append((payloads[0], stored)))

    async def answered(self, count: int) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answers) < count:
                await asyncio.sleep(0.001)
        return [name for name, _ in self.answers]

    def stored(self, topic: str = "t") -> list[str]:
        return [(message.payload or b"").decode() for message in self.broker.topics[topic][0].messages]

    async def close(self) -> None:
        await self.publisher.close()
        await self._outbound.close()


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    cluster = MemoryCluster("publishing", MemoryConfig())
    for topic in ("t", "dead"):
        await cluster.create(topic, 1)
    made = Bench(cluster)
    yield made
    made.broker.faults.hold_receipts = False
    made.broker.reconnect()
    await made.close()
    delete_broker("publishing")
    assert made.in_flight.used == 0


def refuse(*payloads: bytes) -> Callable[[Message], str | None]:
    """Return a fault that refuses these payloads, but not their dead letters."""

    def reason(message: Message) -> str | None:
        return "it is bad" if message.payload in payloads and message.property("mqbridge.dead.reason") is None else None

    return reason


async def test_answers_come_in_the_order_of_the_calls(bench: Bench) -> None:
    await bench.open()
    bench.broker.faults.refuse = refuse(b"b")
    for name in "abcde":
        bench.publish(name)
    assert bench.answers == [], "never before `publish` returns"
    assert await bench.answered(5) == list("abcde")
    assert [list(stored.positions) for _, stored in bench.answers] == [[(0,)], [()], [(1,)], [(2,)], [(3,)]]
    assert [stored.dead_letters for _, stored in bench.answers] == [0, 1, 0, 0, 0]
    assert (bench.stored(), bench.stored("dead")) == (list("acde"), ["b"])


async def test_answers_may_overtake_each_other_if_the_protocol_permits(bench: Bench) -> None:
    await bench.open(in_order=False)
    bench.broker.faults.refuse = refuse(b"a")
    for name in "abc":
        bench.publish(name)
    assert await bench.answered(3) == ["b", "c", "a"]


async def test_a_batch_is_delivered_at_its_time_and_dead_letters_are_at_once(bench: Bench) -> None:
    await bench.open()
    bench.broker.faults.refuse = refuse(b"b")
    for name in "ab":
        batch = Batch.of([Message(name.encode())])
        bench.publisher.publish(0, batch, lambda stored, name=name: bench.answers.append((name, stored)), deliver_at=7)
    await bench.answered(2)
    (message,) = bench.broker.topics["t"][0].messages
    (letter,) = bench.broker.topics["dead"][0].messages
    assert (message.payload, message.deliver_at) == (b"a", 7)
    assert (letter.payload, letter.deliver_at) == (b"b", None)


async def test_the_rest_of_a_batch_that_was_stored_in_part_is_delivered_at_its_time(bench: Bench) -> None:
    await bench.open(sender="p")
    bench.publish("0", "1", sequence=0)
    await bench.answered(1)
    batch = Batch.of([Message(b"%d" % each, position=(each,)) for each in (1, 2)], PRODUCER)
    bench.publisher.publish(0, batch, lambda stored: bench.answers.append(("rest", stored)), deliver_at=7)
    await bench.answered(2)
    messages = bench.broker.topics["t"][0].messages
    assert [(message.payload, message.deliver_at) for message in messages] == [(b"0", None), (b"1", None), (b"2", 7)]


async def test_a_batch_with_a_refused_message_is_a_dead_letter_as_a_whole(bench: Bench) -> None:
    """An SDK that gets an error sends its batch again, for ever; the messages beside the refused one would be stored again."""
    await bench.open()
    bench.broker.faults.refuse = refuse(b"b")
    bench.publish("a", "b", "c")
    bench.publish("d")
    assert await bench.answered(2) == ["a", "d"]
    assert (bench.stored(), bench.stored("dead")) == (["d"], ["a", "b", "c"])
    letters = bench.broker.topics["dead"][0].messages
    assert ["it is bad" in (letter.property("mqbridge.dead.reason") or "") for letter in letters] == [True] * 3
    assert bench.publisher.dead_letters == 3


async def test_a_dead_letter_that_cannot_be_stored_is_an_error(bench: Bench) -> None:
    await bench.open()
    bench.broker.faults.refuse = lambda _: "nothing is accepted"
    bench.publish("a")
    await bench.answered(1)
    ((_, stored),) = bench.answers
    assert stored.problem is not None
    assert stored.problem.failure is Failure.REFUSED
    assert "its dead letter was not stored" in str(stored.problem)
    bench.broker.delete("dead")
    bench.publish("b")
    await bench.answered(2)
    assert "does not exist" in str(bench.answers[1][1].problem) or "there is no topic" in str(bench.answers[1][1].problem)


async def test_a_producer_whose_topic_is_gone_has_to_be_made_again(bench: Bench) -> None:
    await bench.open()
    bench.broker.delete("t")
    bench.publish("a")
    await bench.answered(1)
    assert bench.answers[0][1].problem is not None
    assert bench.publisher.state is State.BROKEN
    bench.publish("b")
    await bench.answered(2)
    assert "broken" in str(bench.answers[1][1].problem)


async def test_in_flight_bytes_tell_when_to_stop_reading_and_when_to_go_on(bench: Bench) -> None:
    await bench.open()
    bench.broker.disconnect()
    woken: list[int] = []
    for index in range(4):
        bench.publish("x" * 30)
        assert bench.in_flight.is_full == (index == 3)
    bench.in_flight.wait(lambda: woken.append(bench.in_flight.used))
    bench.in_flight.wait(lambda: woken.append(bench.in_flight.used))
    bench.broker.reconnect()
    await bench.answered(4)
    assert len(woken) == 2
    assert all(used < 100 for used in woken)


async def test_messages_of_a_named_producer_are_stored_once(bench: Bench) -> None:
    await bench.open(sender="producer-1")
    bench.publish("a", "b", sequence=0)
    bench.publish("c", sequence=2)
    bench.publish("c", sequence=2)
    bench.publish("a", "b", sequence=0)
    assert await bench.answered(4) == ["a", "c", "c", "a"]
    assert [stored.is_duplicate for _, stored in bench.answers] == [False, False, True, True]
    await bench.close()
    await bench.open(sender="producer-1")  # as after a restart
    assert bench.publisher.last_sequence == 2
    bench.publish("c", sequence=2)
    bench.publish("d", sequence=3)
    await bench.answered(6)
    assert bench.stored() == list("abcd")


async def test_closing_waits_for_answers_and_no_longer_than_the_deadline(bench: Bench) -> None:
    await bench.open()
    bench.broker.faults.hold_receipts = True
    bench.publish("a")
    closing = asyncio.ensure_future(bench.publisher.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    bench.broker.release_receipts()
    await closing
    assert await bench.answered(1) == ["a"]
    await bench.open()
    bench.broker.faults.hold_receipts = True
    bench.publish("b")
    async with asyncio.timeout(PATIENCE_S):
        await bench.publisher.close(asyncio.get_running_loop().time() + 0.05)
    bench.broker.release_receipts()
    await bench.answered(2)


async def test_what_a_client_that_is_gone_has_sent_is_withdrawn(bench: Bench) -> None:
    await bench.open()
    bench.broker.disconnect()
    for name in "abc":
        bench.publish(name)
    bench.publisher.abandon()
    await bench.answered(3)
    problems: Sequence[ClusterError | None] = [stored.problem for _, stored in bench.answers]
    assert all(problem is not None for problem in problems)
    bench.broker.reconnect()
    await asyncio.sleep(0.05)
    assert bench.stored() == []


async def test_a_repetition_gets_the_answer_of_what_it_repeats(bench: Bench) -> None:
    """An answer "duplicate" for a message that is not stored in the end would lose it."""
    await bench.open(sender="producer-1")
    bench.broker.disconnect()
    bench.publish("a", sequence=0)
    bench.publish("a", sequence=0)
    bench.publish("b", sequence=1)
    bench.publisher.abandon()
    await bench.answered(3)
    assert [stored.is_duplicate for _, stored in bench.answers] == [False] * 3
    assert all(stored.problem is not None for _, stored in bench.answers)
    bench.broker.reconnect()
    await bench.close()
    await bench.open(sender="producer-1")
    bench.publish("a", sequence=0)
    bench.publish("a", sequence=0)
    await bench.answered(5)
    assert [stored.is_duplicate for _, stored in bench.answers[3:]] == [False, True]
    assert bench.stored() == ["a"]


async def test_only_the_rest_of_a_batch_that_was_stored_in_part_is_sent(bench: Bench) -> None:
    await bench.open(sender="producer-1")
    bench.publish("a", "b", sequence=0)
    await bench.answered(1)
    bench.publish("b", "c", "d", sequence=1)
    await bench.answered(2)
    assert bench.stored() == list("abcd")
    assert bench.publisher.last_sequence == 3


async def test_a_named_producer_has_to_be_made_again_after_a_failure(bench: Bench) -> None:
    await bench.open(sender="producer-1")
    bench.broker.disconnect()
    publication = bench.publisher.publish(0, Batch.of([Message(b"a", position=(0,))], PRODUCER), lambda _: None)
    bench.publisher.withdraw(publication)
    bench.publish("b", sequence=1)
    await bench.answered(1)
    assert bench.publisher.state is State.BROKEN
    bench.broker.reconnect()


class RaisingOutbound:
    """An outbound with a bug."""

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        raise ZeroDivisionError("a bug")

    def withdraw(self, sends: object) -> None:
        pass


async def test_bugs_of_others_keep_nobody_waiting(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.open()
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    bench.publisher.publish(0, Batch.of([Message(b"a")]), lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    bench.publish("b")
    assert await bench.answered(1) == ["b"]
    loop.set_exception_handler(None)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    real = bench.publisher
    bench.publisher = Publisher(
        "memory/t",
        RaisingOutbound(),
        bench.in_flight,
        bench._open_dead_letters,
        in_order=True,  # type: ignore[arg-type]
    )
    bench.publish("c")
    await bench.answered(2)
    assert "a bug" in str(bench.answers[1][1].problem)
    await bench.publisher.close()
    bench.publisher = real
    assert "ZeroDivisionError" in caplog.text


async def test_many_answers_out_of_order_take_linear_time(bench: Bench) -> None:
    await bench.open(in_order=False)
    bench.broker.faults.hold_receipts = True
    for number in range(3000):
        bench.publish(str(number))
    async with asyncio.timeout(PATIENCE_S):
        while len(bench.broker.withheld_receipts) < 3000:
            await asyncio.sleep(0.01)
    bench.broker.withheld_receipts.reverse()
    bench.broker.release_receipts()
    assert await bench.answered(3000) == [str(number) for number in reversed(range(3000))]
