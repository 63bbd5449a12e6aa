"""`consume -o` at a position that the Broker no longer has: all messages from the next available one on are shown."""

import asyncio
from typing import Any

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.cli.commands.consume import ConsumeRequest, _read_as_group, _read_without_group
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model


@pytest.fixture
def model() -> Model:
    return Model({"demo": 1})


def store(model: Model, *bodies: bytes) -> None:
    for body in bodies:
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=body, flag=0))


@pytest.mark.parametrize("group", [None, "g"], ids=["without a group", "as a group"])
@pytest.mark.parametrize("position", [(10 * STEP, 5), (1 * STEP, 5)], ids=["beyond the end", "counts beyond the end"])
async def test_consuming_from_a_lost_position_shows_all_new_messages(
    cluster: TubeMQ, model: Model, group: str | None, position: tuple[int, int]
) -> None:
    """The position is older than the Broker's loss of messages: its index counts messages that no longer exist."""
    store(model, b"old 0", b"old 1")
    shown: list[Any] = []
    reading = ConsumeRequest("demo", group, (), Start.EARLIEST, exit_at_end=False, count=5, msg_types=frozenset())

    def show(_: Any, messages: Any) -> None:
        shown.extend(message.payload for message in messages)

    if group is None:
        consuming = _read_without_group(cluster, reading, {"1:0": position}, {}, show)
    else:
        consuming = _read_as_group(cluster, reading, {"1:0": position}, ["1:0"], {}, None, show)  # type: ignore[arg-type]
    task = asyncio.ensure_future(consuming)
    await until(lambda: 2 * STEP in model.broker.confirmed.values())  # it stands at the end of what there is
    store(model, *(b"new %d" % n for n in range(5)))
    await asyncio.wait_for(task, PATIENCE_S)
    assert shown == [b"new %d" % n for n in range(5)]
