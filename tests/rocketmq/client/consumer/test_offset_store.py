"""Offset stores and commits that fail: they are repeated, and a queue is released all the same."""

from collections.abc import Mapping

from mqbridge.errors import ClusterError
from mqbridge.rocketmq.client.consumer.broadcast_offsets import MemoryOffsets
from mqbridge.rocketmq.client.consumer.consumer_settings import MessageModel
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from tests.rocketmq.client.broker import hangs_up, refuses, until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["environment"]

QUEUE = Queue("T", "broker-a", 0)


class FailingOnce(MemoryOffsets):
    """An offset store whose first load and first save fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = 0

    async def load(self, queue: Queue) -> int | None:
        self._fail_once(1)
        return await super().load(queue)

    async def save(self, offsets: Mapping[Queue, int]) -> None:
        self._fail_once(2)
        await super().save(offsets)

    def _fail_once(self, step: int) -> None:
        if self.failed < step:
            self.failed = step
            raise ClusterError("the disk is full")


async def test_a_failed_load_or_save_of_an_offset_store_is_repeated(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    store = FailingOnce()
    consumer = await environment.join(model=MessageModel.BROADCASTING, store=store)
    await until(lambda: consumer.held)
    assigned = consumer.held[QUEUE]
    assigned.commit((await assigned.receive()).next)
    await consumer.held.commit()
    assert store.offsets == {}
    await consumer.held.commit()
    assert store.offsets == {QUEUE: 1}


async def test_a_commit_that_could_not_be_sent_is_repeated(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    environment.cluster.unreachable.add("a:10911")
    environment.cluster.link_to("a:10911").drop()
    await until(lambda: environment.clients[0].pool.ready("a:10911") is None)
    assigned.commit(pulled.next)
    assert await consumer.store.save_soon({QUEUE: 1}) == [QUEUE]
    await consumer.held.commit()
    await until(lambda: assigned.unreported() == 1)
    environment.cluster.unreachable.clear()
    await until(lambda: environment.groups.committed("G") == 1)  # the commit is sent with the next pull


async def test_the_commit_of_a_lost_pull_counts_as_unreported(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    consumer = await environment.join()
    assigned = consumer.held[QUEUE]
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    assigned.commit(pulled.next)
    environment.cluster.on[Code.PULL_MESSAGE] = hangs_up
    link, _ = environment.groups.held.pop()
    link.drop()
    await until(lambda: assigned.unreported() == 1)


async def test_a_queue_is_released_although_its_commit_is_refused(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"x")
    assigned = await environment.assigned()
    pulled = await assigned.receive()
    await until(lambda: environment.groups.held)
    assigned.commit(pulled.next)
    environment.cluster.on[Code.UPDATE_CONSUMER_OFFSET] = refuses(Status.SUBSCRIPTION_GROUP_NOT_EXIST)
    await assigned.release()
    assert assigned.revoked
    assert environment.groups.committed("G") == 0


async def test_a_commit_is_sent_to_the_broker_of_its_queue(environment: ScriptedEnvironment) -> None:
    environment.cluster.topics["T"] = {"broker-a": 1, "broker-b": 1}
    environment.groups.append(b"x", b"y", broker="broker-b")
    consumer = await environment.join()
    assigned = consumer.held[Queue("T", "broker-b", 0)]
    assigned.commit((await assigned.receive()).next)
    await consumer.close()
    assert (environment.groups.committed("G"), environment.groups.committed("G", broker="broker-b")) == (0, 2)
