"""A lane whose move fails, which a real Broker does not do when asked."""

from datetime import UTC

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.tubemq.adapter.inbound import TubeMQLane
from mqbridge.tubemq.client.pack import Pack
from mqbridge.tubemq.wire.payload import checksum
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage


class Session:
    """Gives one pack of three messages again and again."""

    def __init__(self) -> None:
        said = [TransferedMessage(messageId=n, checkSum=checksum(b"%d" % n), payLoadData=b"%d" % n, flag=0) for n in range(3)]
        self.pack = Pack(said, 28, 0, 112, 3)
        self.fails = False

    async def settled(self) -> None: ...

    async def fetch(self) -> Pack:
        return self.pack

    async def seek(self, offset: int) -> None:
        assert offset == 28
        if self.fails:
            raise ClusterError("not now", Failure.RETRY)


async def test_a_move_that_fails_leaves_nothing_out() -> None:
    session = Session()
    lane = TubeMQLane(session, Partition("c", "t", "1:0", 0), UTC)  # type: ignore[arg-type]
    session.fails = True
    with pytest.raises(ClusterError):
        await lane.seek((28, 2))
    assert [message.payload for message in (await lane.receive()).messages] == [b"0", b"1", b"2"]
    session.fails = False
    await lane.seek((28, 2))
    batch = await lane.receive()
    assert (batch.first, [message.payload for message in batch.messages]) == ((28, 2), [b"2"])
