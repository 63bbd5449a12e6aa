"""Messages held and requested by the queues of a consumer stay within its memory limit, and every queue is read."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Partition
from mqbridge.rocketmq.adapter.lane import RocketMQLane
from mqbridge.rocketmq.client.consumer import pull_loop
from mqbridge.rocketmq.client.consumer.budget import PART_DIVISOR, Account, Charge, PullBudget
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S
from tests.rocketmq.client.broker import Link, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["environment"]

LIMIT = 1 << 20
QUEUES = 300


@pytest.fixture
def many_queues(environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch) -> ScriptedEnvironment:
    """A ScriptedEnvironment whose topic has 300 queues; pauses that only reduce the load of servers are short."""
    environment.cluster.topics["T"] = {"broker-a": QUEUES}
    monkeypatch.setattr(pull_loop, "MIN_HOLD_S", 0.001)
    monkeypatch.setattr(pull_loop, "MAX_IDLE_PAUSE_S", 0.01)
    return environment


@pytest.mark.parametrize(("size", "each"), [(4000, 20), (300, 100), (200_000, 1)])
async def test_a_burst_in_all_idle_queues_stays_within_the_limit(many_queues: ScriptedEnvironment, size: int, each: int) -> None:
    """All queues are idle and get messages at once: responses at a broker's usual limit would be 75 MiB together."""
    consumer = await many_queues.join(max_bytes=LIMIT)
    many_queues.groups.append(bytes(size))  # so that the consumer knows the size of messages
    await until(consumer.held[Queue("T", "broker-a", 0)].take)
    count = len(many_queues.groups.pulls())
    await until(lambda: {pull.queue_id for pull in many_queues.groups.pulls()[count:]} == set(range(QUEUES)))
    for number in range(QUEUES):
        many_queues.groups.append(*[bytes(size)] * each, number=number)
    max_held, read = 0, 0
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while read < QUEUES * each:
            for _ in range(20):
                await asyncio.sleep(0)
                max_held = max(max_held, consumer.budget.held)
            for assigned in consumer.held.values():
                while (pulled := assigned.take()) is not None:
                    read += pulled.count
    assert max_held <= LIMIT + size


async def test_the_first_pulls_share_the_limit_among_all_assigned_queues(environment: ScriptedEnvironment) -> None:
    """The queues start one after another, each when its offset is known."""
    environment.cluster.topics["T"] = {"broker-a": 3}
    for number in range(3):
        environment.groups.append(*[bytes(40_000)] * 3, number=number)
    first = environment.cluster.on[Code.GET_MIN_OFFSET]

    def one_after_another(link: Link, request: Command) -> None:
        link.loop.call_later(0.02 * int(request.ext["queueId"]), first, link, request)

    environment.cluster.on[Code.GET_MIN_OFFSET] = one_after_another
    consumer = await environment.join(max_bytes=150_000)
    await until(lambda: len(consumer.held) == 3 and all(assigned.held_bytes for assigned in consumer.held.values()))
    assert consumer.budget.held <= 150_000
    assert {pull.max_msg_nums for pull in environment.groups.pulls()} == {1}


async def test_all_idle_queues_have_a_held_pull_if_the_limit_allows_it(many_queues: ScriptedEnvironment) -> None:
    await many_queues.join()
    await until(lambda: len(many_queues.groups.held) == QUEUES)


async def test_a_batch_counts_until_it_is_settled_or_the_next_one_is_requested(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[bytes(1000)] * 32)
    consumer = await environment.join()
    assigned = consumer.held[Queue("T", "broker-a", 0)]
    lane = RocketMQLane(Partition("c", "T", "broker-a:0", 0), assigned)
    batch = await lane.receive()
    assert consumer.budget.held == batch.size
    waiting = asyncio.ensure_future(lane.receive())
    await asyncio.sleep(0)
    assert consumer.budget.held == 0
    lane.acknowledge(batch)
    for end in (lane.acknowledge, lane.reject):
        environment.groups.append(*[bytes(1000)] * 32)
        batch = await waiting
        assert consumer.budget.held == batch.size
        end(batch)
        assert consumer.budget.held == 0
        waiting = asyncio.ensure_future(lane.receive())
    batch = await waiting
    assert consumer.budget.held == batch.size
    await lane.release()
    assert consumer.budget.held == 0


async def test_a_lane_that_keeps_its_batch_blocks_only_its_own_queue(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 2}
    for number in range(2):
        environment.groups.append(*[bytes(1000)] * 200, number=number)
    consumer = await environment.join(max_bytes=100_000)
    kept, read = (consumer.held[Queue("T", "broker-a", number)] for number in range(2))
    batch = await RocketMQLane(Partition("c", "T", "broker-a:0", 0), kept).receive()
    taken = 0
    while taken < 200:
        taken += (await asyncio.wait_for(read.receive(), PATIENCE_S)).count
        assert consumer.budget.held <= 100_000
    assert kept.position < 200
    assert batch.count


# --- the budget alone -----------------------------------------------------------------------------------------------------


async def settle_when_granted(budget: PullBudget, waiting: "set[asyncio.Task[Charge]]") -> None:
    """Settle each charge when it is granted, which need not be the order of the calls of `reserve`."""
    while waiting:
        granted, waiting = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert granted, "a reservation is never granted"
        for task in granted:
            budget.settle(task.result())


@given(data=st.data(), limit=st.sampled_from([1000, 10_000, 1 << 20]), queues=st.integers(1, 12), message=st.integers(1, 300))
def test_the_limit_holds_and_every_waiting_queue_is_granted_a_pull(
    data: st.DataObject, limit: int, queues: int, message: int
) -> None:
    """Reserve, respond, fail, release and cancel in any order; no response is larger than its charge."""

    async def run() -> None:
        budget = PullBudget(limit)
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
            assert budget.held + budget.requested <= limit
            assert budget.held == sum(account.held for account in accounts)
            assert budget.requested == sum(charge.size for charge in pulls.values())
            part = limit // queues // PART_DIVISOR
            assert not any(accounts[one].held == 0 and accounts[one].message_bytes <= part for one in asking), (
                "a queue without held messages gets a pull if its message fits its share"
            )
        for charge in pulls.values():
            budget.settle(charge)
        for account in accounts:
            budget.release(account, account.held)
        await settle_when_granted(budget, set(asking.values()))
        assert (budget.held, budget.requested) == (0, 0)

    asyncio.run(run())


async def test_after_a_too_large_response_no_pull_is_granted_until_usage_is_below_the_limit() -> None:
    budget, one, two = PullBudget(100_000), Account(), Account()
    budget.queues = 2
    budget.record_response(one, await budget.reserve(one, idle=False), 150_000, 1)
    waiting = asyncio.ensure_future(budget.reserve(two, idle=True))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    budget.release(one, 150_000)
    assert (await waiting).messages == 1
    assert (await budget.reserve(one, idle=False)).size == 50_000, "a message larger than the limit is charged with half of it"


async def settle_loop() -> None:
    """Let all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class BudgetOfQueues:
    """A budget of 1000 bytes and queues that expect messages of the given sizes; a pull returns one message."""

    def __init__(self, *messages: int) -> None:
        self.budget = PullBudget(1000)
        self.budget.queues = len(messages)
        self.accounts = [Account() for _ in messages]
        for account, message in zip(self.accounts, messages, strict=True):
            account.message_bytes = message

    async def hold(self, number: int) -> None:
        """Pull one message into a queue, where it stays."""
        account = self.accounts[number]
        charge = await asyncio.wait_for(self.budget.reserve(account, idle=True), PATIENCE_S)
        self.budget.record_response(account, charge, account.message_bytes, 1)

    async def take(self, number: int) -> None:
        """Take the messages that a queue holds."""
        self.budget.release(self.accounts[number], self.accounts[number].held)
        await settle_loop()

    async def start_pull(self, number: int) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(self.hold(number))
        await settle_loop()
        return task


async def test_a_waiting_large_message_does_not_block_queues_of_small_messages() -> None:
    """Two queues keep their messages; a third one expects a large message, the others small ones."""
    budget = BudgetOfQueues(400, 300, 490, 10, 10, 10)
    for number in (0, 1):
        await budget.hold(number)
    large = await budget.start_pull(2)
    assert not large.done(), "the large message would exceed the limit"
    for _ in range(5):
        for number in (3, 4, 5):
            await budget.hold(number)
        for number in (3, 4, 5):
            await budget.take(number)
    assert not large.done()
    await budget.take(0)
    assert large.done()


async def test_a_smaller_message_overtakes_a_larger_one_that_waits_for_room() -> None:
    budget = BudgetOfQueues(400, 490, 200, 60)
    await budget.hold(0)
    budget.accounts[0].message_bytes = 350
    large = await budget.start_pull(1)
    assert not large.done(), "its own share is free, but three fourths of the limit are already borrowed"
    for _ in range(5):
        for number in (2, 3):
            await budget.hold(number)
        for number in (2, 3):
            await budget.take(number)
    await budget.take(0)
    assert large.done()


async def test_a_large_message_is_pulled_among_queues_that_are_read_continuously() -> None:
    budget = BudgetOfQueues(490, *[150] * 9)
    pulls = {number: await budget.start_pull(number) for number in range(1, 10)}
    large = await budget.start_pull(0)
    assert not large.done()
    for number in [number for _ in range(2) for number in pulls]:
        if pulls[number].done():
            await budget.take(number)
            pulls[number] = await budget.start_pull(number)
    assert large.done()
    for task in pulls.values():
        task.cancel()


async def test_a_cancelled_reservation_lets_the_next_one_through() -> None:
    """A cancelled reservation, as of a revoked queue, frees the way for those behind it without any other event."""
    budget = BudgetOfQueues(450, 490, 340)
    await budget.hold(0)
    first, second = await budget.start_pull(1), await budget.start_pull(2)
    assert not first.done()
    assert not second.done(), "it waits behind the first"
    first.cancel()
    await asyncio.wait_for(second, PATIENCE_S)


async def test_a_waiting_queue_continues_when_fewer_queues_make_its_share_large_enough() -> None:
    """Two queues keep their messages, and the others must not borrow."""
    budget = BudgetOfQueues(400, 340, 490, 40, *[1] * 36)
    for number in (0, 1):
        await budget.hold(number)
    large, small = await budget.start_pull(2), await budget.start_pull(3)
    assert not large.done()
    assert not small.done(), "its share is a fourth of a fortieth of the limit"
    budget.budget.queues = 4
    await asyncio.wait_for(small, PATIENCE_S)
    assert not large.done()
    large.cancel()


async def test_bytes_held_before_queues_were_added_count_once_against_the_borrowed_room() -> None:
    """Messages held when there was a single queue must count against its share or the borrowed room, not both."""
    budget = BudgetOfQueues(250)
    for _ in range(2):
        await budget.hold(0)
    budget.budget.queues = 10
    large = Account()
    large.message_bytes = 450
    waiting = asyncio.ensure_future(budget.budget.reserve(large, idle=True))
    await settle_loop()
    assert not waiting.done(), "with the shares of all queues it would exceed the limit"
    await budget.take(0)
    assert waiting.done()


async def test_a_queue_that_was_never_read_is_pulled_once_messages_are_small_again() -> None:
    """It expects messages like the last ones of other queues; two queues before it wait for room that is not freed."""
    budget = BudgetOfQueues(400, 340, 490, 200, 0, 10)
    for number in (0, 1):
        await budget.hold(number)
    waiting = [await budget.start_pull(number) for number in (2, 3, 4)]
    assert not any(task.done() for task in waiting)
    for _ in range(30):
        await budget.hold(5)
        await budget.take(5)
    assert [task.done() for task in waiting] == [False, False, True]
    for task in waiting:
        task.cancel()
