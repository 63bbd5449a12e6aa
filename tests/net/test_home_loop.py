"""The event loop to which a client belongs."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from mqbridge.errors import Failure, WrongEventLoop
from mqbridge.net.home_loop import HomeLoop


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that runs in a thread called `other`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="other")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _call(function: object) -> object:
    assert callable(function)
    return function()


def test_the_first_use_chooses_the_loop(other_loop: asyncio.AbstractEventLoop) -> None:
    home = HomeLoop("the client")
    home.check_running()  # no loop yet
    asyncio.run_coroutine_threadsafe(_call(home.check), other_loop).result()
    asyncio.run_coroutine_threadsafe(_call(home.check), other_loop).result()
    text = "belongs to an event loop of thread 'other', and was used in thread 'MainThread', where another event loop runs"
    for check in (home.check, home.check_running, home.is_over):
        with pytest.raises(WrongEventLoop, match=text) as caught:
            asyncio.run(_call(check))
        assert caught.value.failure is Failure.FATAL
    with pytest.raises(WrongEventLoop, match=r"where no event loop runs.*call_soon_threadsafe"):
        home.check()


def test_a_closed_loop_is_named_as_the_cause() -> None:
    home = HomeLoop("the client")
    asyncio.run(_call(home.check))
    with pytest.raises(WrongEventLoop, match=r"an event loop of thread 'MainThread', which is closed.*each call of asyncio\.run"):
        asyncio.run(_call(home.check))
    assert asyncio.run(_call(home.is_over)), "there is nothing left to close"


def test_an_object_that_is_made_in_a_loop_belongs_to_it() -> None:
    home = asyncio.run(_call(lambda: HomeLoop("the producer")))
    assert isinstance(home, HomeLoop)
    with pytest.raises(WrongEventLoop, match="the producer was made or used first"):
        asyncio.run(_call(home.check))


def test_a_use_without_any_loop() -> None:
    home = HomeLoop("the consumer")
    with pytest.raises(WrongEventLoop, match="the consumer was used in thread 'MainThread', where no event loop runs"):
        home.check()
    assert not home.is_over()
