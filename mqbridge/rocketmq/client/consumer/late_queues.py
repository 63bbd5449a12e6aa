"""Start of a queue whose broker was down when a group began at the end of its topic.

The group must get what was stored since it began, and not the history before. Only the store times of the messages tell the two
apart, and these are times of the broker's clock.
"""

import asyncio
import logging
import re
import time

from mqbridge.errors import RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.admin.positions import Positions
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.wire.bodies.configs import RuntimeInfo
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code

log = logging.getLogger(__name__)

CLOCK_ATTEMPTS, CLOCK_PAUSE_S = 6, 1.0
"""How often a broker is asked for its clock, and the pause after a failure: it refuses the request in its first second or two."""
_UPTIME = re.compile(r"\[ (\d{1,9}) days, (\d{1,2}) hours, (\d{1,2}) minutes, (\d{1,2}) seconds \]")


async def late_start(client: BaseClient, positions: Positions, queue: Queue, began_ms: int) -> int:
    """Return the offset of the first message that was stored since `began_ms` of our clock (ms since the epoch).

    It may be up to about a second too early. If the broker does not tell its clock, it is the first message of the queue. Raises
    ClusterError.
    """
    behind_ms = await _clock_behind_ms(client, await positions.master(queue))
    if behind_ms is None:
        log.warning("queue %s is read from its beginning, since its broker does not tell its clock", queue_label(queue))
        return await positions.first(queue)
    return await positions.at(queue, began_ms - behind_ms)


async def _clock_behind_ms(client: BaseClient, address: str) -> int | None:
    """Return by how much the broker's clock is behind ours, rounded up by at most a second; None if it does not tell."""
    for attempt in range(CLOCK_ATTEMPTS):
        if attempt:
            await asyncio.sleep(CLOCK_PAUSE_S)
        try:
            response = await client.request(address, Code.GET_BROKER_RUNTIME_INFO)
            now_ms, values = time.time_ns() // 1_000_000, RuntimeInfo.decode(response.body).values
        except (AccessRefused, RemoteProtocolError):
            return None
        except ServerRefused:
            continue
        boot_ms, uptime = values.get("bootTimestamp", ""), _UPTIME.fullmatch(values.get("runtime", ""))
        if not boot_ms.isdecimal() or uptime is None:
            return None
        days, hours, minutes, seconds = map(int, uptime.groups())
        uptime_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return now_ms - (int(boot_ms[:20]) + uptime_s * 1000)
    return None
