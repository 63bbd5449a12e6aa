"""Opening a throw-away inbound for a person: it begins at given positions, moves no group and leaves none behind."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mqbridge.adapter import Cluster, Inbound, InboundSpec, Start
from mqbridge.message import Position

THROW_AWAY = "mqbridge-cli-"


def throw_away_group() -> str:
    """A group's name that nobody else has."""
    return THROW_AWAY + secrets.token_hex(6)


@contextlib.asynccontextmanager
async def temporary(
    cluster: Cluster,
    topic: str,
    positions: Mapping[str, Position],
    options: Any,
    *,
    start: Start = Start.EARLIEST,
    msg_types: frozenset[str] = frozenset(),
) -> AsyncIterator[Inbound]:
    """The inbound, closed at the end. Raises ClusterError."""
    spec = InboundSpec(
        topics=(topic,),
        group=throw_away_group(),
        start=start,
        msg_types=msg_types,
        temporary=True,
        positions=positions,
        options=options,
    )
    inbound = await cluster.inbound(spec)
    try:
        yield inbound
    finally:
        await inbound.close()
