"""What the queues of a consumer hold, and ask for, stays within its limit; and every queue is read all the same."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Partition
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.client import pull_loop
from mqbridge.rocketmq.client.budget import PART_DIVISOR, Account, Budget, Charge
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S
from tests.rocketmq.client.broker import Link, until
from tests.rocketmq.client.groups import Scene, scene

__all__ = ["scene"]

LIMIT = 1 << 20
QUEUES = 300


@pytest.fixture
def many(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A topic of many queues, where pauses only spare servers."""
    scene.cluster.topics["T"] = {"broker-a": QUEUES}
    monkeypatch.setattr(pull_loop, "MIN_HOLD_S", 0.001)
    monkeypatch.setattr(pull_loop, "MAX_IDLE_PAUSE_S", 0.01)
    return scene


@pytest.mark.parametrize(("size", "each"), [(4000, 20), (300, 100), (200_000, 1)])
async def test_a_burst_in_all_idle_queues_stays_within_the_limit(many: Scene, size: int, each: int) -> None:
    """All at once, while no queue has anything: answers of a broker's usual limit would be 75 MiB."""
    consumer = await many.join(max_bytes=LIMIT)
    many.groups.append(bytes(size))  # what messages are like in this topic
    await until(consumer.held[Queue("T", "broker-a", 0)].take)
    asked = len(many.groups.pulls())
    await until(lambda: {one.queue_id for one in many.groups.pulls()[asked:]} == set(range(QUEUES)))
    for number in range(QUEUES):
        many.groups.append(*[bytes(size)] * each, number=number)
    most, read = 0, 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while read < QUEUES * each:
            for _ in range(20):
                await asyncio.sleep(0)
                most = max(most, consumer.budget.held)
            for assigned in consumer.held.values():
                while (pulled := assigned.take()) is not None:
                    read += pulled.count
    assert most <= LIMIT + size


async def test_the_first_pulls_share_the_limit_among_all_assigned_queues(scene: Scene) -> None:
    """Queues begin one after another, each when its offset is known."""
    scene.cluster.topics["T"] = {"broker-a": 3}
    for number in range(3):
        scene.groups.append(*[bytes(40_000)] * 3, number=number)
    first = scene.cluster.on[Code.GET_MIN_OFFSET]

    def one_after_another(link: Link, request: Command) -> None:
        link.loop.call_later(0.02 * int(request.ext["queueId"]), first, link, request)

    scene.cluster.on[Code.GET_MIN_OFFSET] = one_after_another
    consumer = await scene.join(max_bytes=150_000)
    await until(lambda: len(consumer.held) == 3 and all(assigned.held_bytes for assigned in consumer.held.values()))
    assert consumer.budget.held <= 150_000
    assert {one.max_msg_nums for one in scene.groups.pulls()} == {1}


async def test_all_idle_queues_have_a_held_pull_if_the_limit_allows_it(many: Scene) -> None:
    await many.join()
    await until(lambda: len(many.groups.held) == QUEUES)


async def test_a_batch_counts_until_it_is_settled_or_the_next_one_is_requested(scene: Scene) -> None:
    scene.groups.append(*[bytes(1000)] * 32)
    consumer = await scene.join()
    assigned = consumer.held[Queue("T", "broker-a", 0)]
    lane = RocketMQLane(Partition("c", "T", "broker-a:0", 0), assigned)
    batch = await lane.receive()
    assert consumer.budget.held == batch.size
    waiting = asyncio.ensure_future(lane.receive())
    await asyncio.sleep(0)
    assert consumer.budget.held == 0
    lane.acknowledge(batch)
    for end in (lane.acknowledge, lane.reject):
        scene.groups.append(*[bytes(1000)] * 32)
        batch = await waiting
        assert consumer.budget.held == batch.size
        end(batch)
        assert consumer.budget.held == 0
        waiting = asyncio.ensure_future(lane.receive())
    batch = await waiting
    assert consumer.budget.held == batch.size
    await lane.release()
    assert consumer.budget.held == 0


async def test_a_lane_that_keeps_its_batch_blocks_only_its_own_queue(scene: Scene) -> None:
    scene.cluster.topics["T"] = {"broker-a": 2}
    for number in range(2):
        scene.groups.append(*[bytes(1000)] * 200, number=number)
    consumer = await scene.join(max_bytes=100_000)
    kept, read = (consumer.held[Queue("T", "broker-a", number)] for number in range(2))
    batch = await RocketMQLane(Partition("c", "T", "broker-a:0", 0), kept).receive()
    taken = 0
    while taken < 200:
        taken += (await asyncio.wait_for(read.receive(), PATIENCE_S)).count
        assert consumer.budget.held <= 100_000
    assert kept.position < 200
    assert batch.count


# --- the books ------------------------------------------------------------------------------------------------------------


async def settle_in_turn(budget: Budget, waiting: "set[asyncio.Task[Charge]]") -> None:
    """Settle each charge when it is granted: not in the order of asking, as a queue that holds its share joins the line later."""
    while waiting:
        granted, waiting = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert granted, "somebody never comes to ask"
        for task in granted:
            budget.settle(task.result())


@given(data=st.data(), limit=st.sampled_from([1000, 10_000, 1 << 20]), queues=st.integers(1, 12), message=st.integers(1, 300))
def test_the_limit_holds_and_every_waiting_queue_is_granted_a_pull(
    data: st.DataObject, limit: int, queues: int, message: int
) -> None:
    """Answers bring up to what they were charged for; in any order of asking, answering, failing, taking and giving up."""

    async def run() -> None:
        budget = Budget(limit)
        budget.queues = queues
        accounts = [Account() for _ in range(queues)]
        for account in accounts:
            account.message_bytes = data.draw(st.sampled_from([1, message, limit // 3]))
        asking: dict[int, asyncio.Task[Charge]] = {}
        pulls: dict[int, Charge] = {}
        for _ in range(data.draw(st.integers(1, 40))):
            number = data.draw(st.integers(0, queues - 1))
            step = data.draw(st.sampled_from(["ask", "answer", "fail", "take", "cancel"]))
            if step == "ask" and number not in asking and number not in pulls:
                asking[number] = asyncio.ensure_future(budget.reserve(accounts[number], idle=data.draw(st.booleans())))
            elif step == "answer" and number in pulls:
                charge = pulls.pop(number)
                count = data.draw(st.integers(1, charge.messages))
                budget.record_response(accounts[number], charge, min(charge.size, count * accounts[number].message_bytes), count)
            elif step == "fail" and number in pulls:
                budget.settle(pulls.pop(number))
            elif step == "take" and accounts[number].held:
                budget.release(accounts[number], accounts[number].held)
            elif step == "cancel" and number in asking:
                asking.pop(number).cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            pulls |= {number: asking.pop(number).result() for number in list(asking) if asking[number].done()}
            assert budget.held + budget.expected <= limit
            assert budget.held == sum(account.held for account in accounts)
            assert budget.expected == sum(charge.size for charge in pulls.values())
            part = limit // queues // PART_DIVISOR
            assert not any(accounts[one].held == 0 and accounts[one].message_bytes <= part for one in asking), (
                "who is read goes on"
            )
        for charge in pulls.values():
            budget.settle(charge)
        for account in accounts:
            budget.release(account, account.held)
        await settle_in_turn(budget, set(asking.values()))
        assert (budget.held, budget.expected) == (0, 0)

    asyncio.run(run())


async def test_after_a_too_large_response_no_pull_is_granted_until_usage_is_below_the_limit() -> None:
    budget, one, two = Budget(100_000), Account(), Account()
    budget.queues = 2
    budget.record_response(one, await budget.reserve(one, idle=False), 150_000, 1)
    waiting = asyncio.ensure_future(budget.reserve(two, idle=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    budget.release(one, 150_000)
    assert (await waiting).messages == 1
    assert (await budget.reserve(one, idle=False)).size == 50_000, "half of the limit, for a message that fits nowhere"


async def turn() -> None:
    """Everything that may happen does."""
    for _ in range(10):
        await asyncio.sleep(0)


class Books:
    """A budget of 1000 bytes; its queues expect messages of these sizes. Who pulls gets one message of its size."""

    def __init__(self, *messages: int) -> None:
        self.budget = Budget(1000)
        self.budget.queues = len(messages)
        self.accounts = [Account() for _ in messages]
        for account, message in zip(self.accounts, messages, strict=True):
            account.message_bytes = message

    async def hold(self, number: int) -> None:
        """It pulls one message, which nobody takes."""
        account = self.accounts[number]
        charge = await asyncio.wait_for(self.budget.reserve(account, idle=True), PATIENCE_S)
        self.budget.record_response(account, charge, account.message_bytes, 1)

    async def take(self, number: int) -> None:
        """Somebody takes what it holds."""
        self.budget.release(self.accounts[number], self.accounts[number].held)
        await turn()

    async def asks(self, number: int) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(self.hold(number))
        await turn()
        return task


async def test_a_waiting_large_message_does_not_block_queues_of_small_messages() -> None:
    """Nobody takes what two queues hold; a third has a large message, the others small ones."""
    books = Books(400, 300, 490, 10, 10, 10)
    for number in (0, 1):
        await books.hold(number)
    large = await books.asks(2)
    assert not large.done(), "it would be beyond the limit"
    for _ in range(5):
        for number in (3, 4, 5):
            await books.hold(number)
        for number in (3, 4, 5):
            await books.take(number)
    assert not large.done()
    await books.take(0)
    assert large.done()


async def test_a_smaller_message_overtakes_a_larger_one_that_waits_for_room() -> None:
    books = Books(400, 490, 200, 60)
    await books.hold(0)
    books.accounts[0].message_bytes = 350
    large = await books.asks(1)
    assert not large.done(), "one part of it is there, and three fourths of the limit are lent"
    for _ in range(5):
        for number in (2, 3):
            await books.hold(number)
        for number in (2, 3):
            await books.take(number)
    await books.take(0)
    assert large.done()


async def test_a_large_message_is_pulled_among_queues_that_are_read_continuously() -> None:
    books = Books(490, *[150] * 9)
    others = {number: await books.asks(number) for number in range(1, 10)}
    large = await books.asks(0)
    assert not large.done()
    for number in [number for _ in range(2) for number in others]:
        if others[number].done():
            await books.take(number)
            others[number] = await books.asks(number)
    assert large.done()
    for task in others.values():
        task.cancel()


async def test_a_cancelled_reservation_lets_the_next_one_through() -> None:
    """Its queue was taken away, or moved: nothing else need happen for those behind it to fit."""
    books = Books(450, 490, 340)
    await books.hold(0)
    first, second = await books.asks(1), await books.asks(2)
    assert not first.done()
    assert not second.done(), "it would take the room of the first"
    first.cancel()
    await asyncio.wait_for(second, PATIENCE_S)


async def test_a_waiting_queue_continues_when_fewer_queues_make_its_share_large_enough() -> None:
    """Nobody takes what two queues hold, and no other may borrow."""
    books = Books(400, 340, 490, 40, *[1] * 36)
    for number in (0, 1):
        await books.hold(number)
    large, small = await books.asks(2), await books.asks(3)
    assert not large.done()
    assert not small.done(), "its part is a fourth of a fortieth"
    books.budget.queues = 4
    await asyncio.wait_for(small, PATIENCE_S)
    assert not large.done()
    large.cancel()


async def test_bytes_held_before_queues_were_added_count_once_against_the_borrowed_room() -> None:
    """It was held out of the part that a queue without others has."""
    books = Books(250)
    for _ in range(2):
        await books.hold(0)
    books.budget.queues = 10
    large = Account()
    large.message_bytes = 450
    waiting = asyncio.ensure_future(books.budget.reserve(large, idle=True))
    await turn()
    assert not waiting.done(), "with all parts it would be beyond the limit"
    await books.take(0)
    assert waiting.done()


async def test_a_queue_that_was_never_read_is_pulled_once_messages_are_small_again() -> None:
    """It expects what came last of others; two that wait before it find no room, as nobody takes what others hold."""
    books = Books(400, 340, 490, 200, 0, 10)
    for number in (0, 1):
        await books.hold(number)
    waiting = [await books.asks(number) for number in (2, 3, 4)]
    assert not any(task.done() for task in waiting)
    for _ in range(30):
        await books.hold(5)
        await books.take(5)
    assert [task.done() for task in waiting] == [False, False, True]
    for task in waiting:
        task.cancel()
