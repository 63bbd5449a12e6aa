"""Finds the address of a host name that works, if the name has several: attempts to connect overlap (RFC 8305).

The first address of a name is not better than the others: it may drop packets (IPv6 without a route, a pod that is gone), refuse,
or accept connections without serving them. So the next address is tried if the attempt before it has failed or takes longer than
a healthy network needs. The attempts that began earlier continue, and the first one that succeeds ends the others.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine, MutableMapping, Sequence
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Any

from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn

ATTEMPT_DELAY_S = 0.25
"""Time after which the next address is tried beside those that have not answered; RFC 8305 recommends this value."""
MAX_ADDRESSES = 16
"""Maximum number of addresses of a name that are tried, and so of connections that are open at the same time."""


async def resolve(host: str, port: int) -> list[str]:
    """Return at most MAX_ADDRESSES addresses of a host name, in the order of the resolver, but with alternating families.

    Raises OSError if the name is unknown, UnicodeError if it is invalid.
    """
    try:
        ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    else:
        return [host]
    families: dict[int, dict[str, None]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, {})[_text(address)] = None
    alternating = chain.from_iterable(zip_longest(*families.values()))
    return [ip for ip in alternating if ip is not None][:MAX_ADDRESSES]


def _text(address: Any) -> str:
    """Return the IP address of a socket address; a link-local one of IPv6 works only with its scope."""
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope and "%" not in address[0] else str(address[0])


async def race(
    addresses: Sequence[str],
    connect: Callable[[str], Coroutine[Any, Any, None]],
    timeout_s: float,
    failed: MutableMapping[str, OSError],
) -> bool:
    """Return True as soon as `connect` succeeds at one of the addresses, False if it raises OSError at all of them.

    The errors are stored in `failed`, by address. `timeout_s` is the time that the caller allows for all attempts: with many
    addresses they follow each other faster, so that the last one gets half of it.
    """
    delay_s = min(ATTEMPT_DELAY_S, timeout_s / 2 / len(addresses))
    waiting = deque(addresses)
    running: dict[asyncio.Task[None], str] = {}
    try:
        while waiting or running:
            if waiting:
                address = waiting.popleft()
                running[spawn(connect(address), f"connect to {address}", log_errors=False)] = address
            await asyncio.wait(running, timeout=delay_s if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                address = running.pop(task)
                if (error := task.exception()) is None:
                    return True
                if not isinstance(error, OSError):
                    raise error
                failed[address] = error
    finally:
        await cancel(*running)
        for task in running:
            mark_error_retrieved(task)
    return False
