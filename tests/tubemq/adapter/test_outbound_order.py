"""An outbound that fails in order stores nothing behind a failed share before its caller knows of the failure."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import Failure
from mqbridge.tubemq.client.producer import broker_reconnector
from tests.kit.chained_futures import chained, send_until_told
from tests.patience import PATIENCE_S
from tests.tubemq.adapter.test_outbound import kinds, outbound_to, share
from tests.tubemq.client.producer.test_partition_sender import FakeBroker


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reconnector, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(broker_reconnector, "MAX_RETRY_S", 0.002)


class LayeredSender:
    """A `PartitionSender` whose results pass through more futures before the callbacks get them."""

    def __init__(self, sender: Any, layers: int) -> None:
        self._sender, self._layers = sender, layers
        self.results: list[asyncio.Future[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def submit(self, *arguments: Any, done: Any, **more: Any) -> None:
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.results.append(result)
        chained(result, self._layers).add_done_callback(lambda outer: done(outer.result()))
        self._sender.submit(*arguments, done=result.set_result, **more)


@pytest.mark.parametrize("layers", range(5))
async def test_nothing_is_stored_before_the_caller_knows_of_a_failure(layers: int) -> None:
    """However many layers the result passes."""
    broker = FakeBroker(419)
    outbound = outbound_to(broker, max_elapsed_s=0.0)
    outbound._sender = layered = LayeredSender(outbound._sender, layers)  # type: ignore[assignment]
    told = outbound.send(0, share(b"first"))
    late = send_until_told(told, layered.results[0], lambda: outbound.send(0, share(b"late")))
    assert kinds(await told) == [Failure.RETRY]
    assert len(late) >= layers
    assert [kinds(receipt) for receipt in await asyncio.gather(*late)] == [[Failure.RETRY]] * len(late)
    assert broker.stored == []
    async with asyncio.timeout(PATIENCE_S):
        while kinds(await outbound.send(0, share(b"again"))):
            await asyncio.sleep(0)
    assert len(broker.stored) == 1
    await outbound.close()
