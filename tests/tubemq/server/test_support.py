"""Every refused feature of the support table is refused with its text and code."""

from collections.abc import Awaitable, Callable

import pytest

from mqbridge.listener.support import Support
from mqbridge.tubemq.server import support
from mqbridge.tubemq.server.support import BACKINGS, LOG_BACKING, TABLE
from mqbridge.tubemq.wire import rpc
from tests.tubemq.server.serving import TubeMQServing, serving
from tests.tubemq.server.test_balanced import choose
from tests.tubemq.server.test_connection import RawFrames, error_of

Refusal = tuple[str, str]
"""The text and the code that a client gets."""


async def _choice(served: TubeMQServing) -> Refusal:
    response = await choose(await served.connect())
    return response.errMsg, str(response.errCode)


async def _bound(served: TubeMQServing) -> Refusal:
    response = await (await served.connect()).join(requireBound=True, sessionKey="s", totalCount=1)
    return response.errMsg, str(response.errCode)


async def _missing(served: TubeMQServing) -> Refusal:
    response = await (await served.connect()).join("missing")
    return response.errMsg, str(response.errCode)


async def _unknown(served: TubeMQServing) -> Refusal:
    raw = await RawFrames.open(served)
    status, _, text = error_of(await raw.ask(rpc.encode_request(rpc.MASTER, 7, 1000, b"")))
    await raw.close()
    return text, "FATAL" if status == 2 else str(status)


ASKED: dict[str, Callable[[TubeMQServing], Awaitable[Refusal]]] = {
    support.NO_CHOICE: _choice,
    support.NO_BOUND: _bound,
    support.NO_CREATION: _missing,
    support.UNKNOWN_METHOD: _unknown,
}
"""What asks for a refused feature, by the text of the refusal."""
REFUSED = {
    row.cell(backing).text: row.cell(backing).code
    for row in TABLE
    for backing in BACKINGS
    if row.cell(backing).support is Support.REFUSED
}
WEB = {support.NOT_MANAGED, support.NOT_CREATED}
"""Refusals of web methods, which the tests of these show."""


def test_every_refusal_is_shown() -> None:
    assert set(REFUSED) <= ASKED.keys() | WEB


@pytest.mark.parametrize("text", sorted(ASKED))
async def test_refused_features_are_refused_with_their_text_and_code(text: str) -> None:
    assert LOG_BACKING in BACKINGS
    async with serving(owns_groups=False, create_partitions=None) as served:
        await served.create()
        found, code = await ASKED[text](served)
        assert text in found
        assert code == REFUSED[text]
