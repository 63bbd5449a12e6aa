"""The threads of a store: order, results, cancellation, and their end."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError
from mqbridge.log.store import job_thread
from mqbridge.log.store.database import Store
from mqbridge.log.store.job_thread import JobThread
from mqbridge.log.store.settings import LogSettings
from tests.kit.conversation import until
from tests.patience import PATIENCE_S


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_jobs_run_in_the_order_of_the_calls_and_give_results_and_errors() -> None:
    thread, order = JobThread("test-order"), list[int]()

    def job(number: int) -> int:
        order.append(number)
        if number == 3:
            raise ValueError("three")
        return number * 2

    futures = [thread.submit(lambda number=number: job(number)) for number in range(5)]  # type: ignore[misc]
    results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), PATIENCE_S)
    assert order == list(range(5))
    assert [str(result) for result in results] == ["0", "2", "4", "three", "8"]
    thread.end()
    thread.join()
    assert not threads("test-order")


async def test_an_exception_that_no_future_can_have_is_told() -> None:
    thread = JobThread("test-stop")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(thread.submit(lambda: next(iter(()))), PATIENCE_S)
    thread.end()
    with pytest.raises(RuntimeError, match="test-stop has been ended"):
        thread.submit(lambda: None)


@pytest.mark.parametrize("room", [0, 1])
async def test_a_system_without_room_for_threads_is_an_error_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The writing thread ends if there is no room for the reading one."""
    begin, started = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if len(started) == room:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        begin(thread)

    store = Store(LogSettings(path=tmp_path / "log.db"))
    before = set(job_thread._running)  # other tests of this process may keep stores open, as those of Spark's sink do
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(ClusterError, match="raise the limit of processes and threads"):
            await store.open()
    assert len(started) == room
    await until(lambda: set(job_thread._running) <= before)
    await store.open()
    await store.close()


async def test_a_failed_job_leaves_nothing_for_the_garbage_collection() -> None:
    thread = JobThread("test-cycle")

    class Value:
        """Something that a weak reference can refer to."""

    def job(value: Value) -> None:
        raise ValueError(str(value))

    gc.collect()
    gc.disable()
    try:
        value = Value()
        seen = weakref.ref(value)
        with contextlib.suppress(ValueError):
            await thread.submit(partial(job, value))
        del value
        await thread.submit(lambda: None)
        assert seen() is None
    finally:
        gc.enable()
        thread.end()


async def test_a_job_that_is_cancelled_in_time_does_not_run() -> None:
    thread, release, ran = JobThread("test-cancel"), threading.Event(), list[str]()
    running = thread.submit(lambda: (release.wait(PATIENCE_S), ran.append("running")))
    waiting = thread.submit(lambda: ran.append("waiting"))
    last = thread.submit(lambda: ran.append("last"))
    waiting.cancel()
    running.cancel()  # too late: the job runs on, and its result is dropped
    await asyncio.sleep(0)
    release.set()
    await asyncio.wait_for(last, PATIENCE_S)
    assert ran in (["running", "last"], ["last"])
    thread.end()


async def test_a_thread_ends_after_its_queued_jobs() -> None:
    thread, done = JobThread("test-end"), list[int]()
    for number in range(3):
        thread.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    thread.end()
    await asyncio.to_thread(thread.join)
    assert done == [0, 1, 2]


async def test_a_thread_that_nothing_refers_to_ends() -> None:
    thread = JobThread("test-forgotten")
    await thread.submit(lambda: None)
    del thread
    gc.collect()
    await until(lambda: not threads("test-forgotten"))


def test_a_result_for_an_event_loop_that_was_closed_is_dropped() -> None:
    thread, release = JobThread("test-loop"), threading.Event()

    async def submit() -> None:
        thread.submit(lambda: release.wait(PATIENCE_S))

    asyncio.run(submit())
    release.set()
    thread.end()
    thread.join()
    assert not threads("test-loop")


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "forgotten"])
def test_the_end_of_the_process_waits_for_the_jobs(ends: bool) -> None:
    """A daemon thread alone would be stopped in the middle of a job."""
    script = f"""
import asyncio, time
from mqbridge.errors import ClusterError
from mqbridge.log.store import job_thread
from mqbridge.log.store.database import Store
from mqbridge.log.store.job_thread import JobThread
from mqbridge.log.store.settings import LogSettings

def job(number):
    time.sleep(0.2)
    print(number, flush=True)

async def main():
    global thread
    thread = JobThread("test")
    for number in range(3):
        thread.submit(lambda number=number: job(number))
    if {ends}:
        thread.end()

asyncio.run(main())
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stdout.split(), result.stderr) == (["0", "1", "2"], "")


def test_no_job_is_taken_while_the_process_ends() -> None:
    """It would wait for ever behind a thread that has ended."""
    script = """
import asyncio, atexit

@atexit.register
def late():
    async def submit():
        await thread.submit(print)
    try:
        asyncio.run(submit())
    except RuntimeError as error:
        print(error, flush=True)

from mqbridge.log.store.job_thread import JobThread
thread = JobThread("test")
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.stdout == "the thread test has been ended\n"
