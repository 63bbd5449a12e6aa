"""The budget is never exceeded, no byte is lost, and waiters are served in order, whichever calls are cancelled."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.net.budget import Budget
from mqbridge.net.read_ahead import ReadAheadAccount
from tests.patience import PATIENCE_S


async def test_a_batch_beyond_the_limit_is_admitted_alone() -> None:
    budget = Budget(10)
    await budget.reserve(100)
    second = asyncio.ensure_future(budget.reserve(1))
    await asyncio.sleep(0)
    assert not second.done()
    budget.release(100)
    await second
    assert budget.used == 1


async def test_waiters_are_granted_first_come_first_served() -> None:
    budget = Budget(10)
    await budget.reserve(10)
    order: list[int] = []

    async def reserve(number: int, size: int) -> None:
        await budget.reserve(size)
        order.append(number)

    tasks = [asyncio.ensure_future(reserve(number, size)) for number, size in enumerate([8, 1, 1])]
    await asyncio.sleep(0)
    budget.release(10)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


@given(seed=st.integers(0, 1 << 32))
def test_cancelled_reservations_are_released(seed: int) -> None:
    chance = random.Random(seed)

    async def scenario() -> None:
        budget = Budget(50)

        async def worker() -> None:
            size = chance.randint(1, 40)
            await budget.reserve(size)
            try:
                assert budget.used <= 50
                await asyncio.sleep(0)
            finally:
                budget.release(size)

        tasks = [asyncio.ensure_future(worker()) for _ in range(20)]
        for _ in range(15):
            await asyncio.sleep(0)
            chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.used == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [0, 5])
async def test_free_bytes_are_reserved_without_waiting(size: int) -> None:
    budget = Budget(10)
    await asyncio.wait_for(budget.reserve(size), PATIENCE_S)
    assert budget.used == size


@pytest.mark.parametrize("iterations", range(6))
@pytest.mark.parametrize("between", range(4))
async def test_bytes_reserved_during_two_cancellations_are_released(iterations: int, between: int) -> None:
    """A stopped lane may be revoked in the next loop iteration; both cancel its wait for the budget."""
    budget = Budget(10)
    await budget.reserve(10)
    account = ReadAheadAccount(budget, asyncio.Event())
    waiting = asyncio.ensure_future(account.reserve(4))
    for _ in range(3):
        await asyncio.sleep(0)
    budget.release(10)
    for _ in range(iterations):
        await asyncio.sleep(0)
    waiting.cancel()
    for _ in range(between):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    for _ in range(5):
        await asyncio.sleep(0)
    assert budget.used == account.held_bytes
