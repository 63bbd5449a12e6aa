"""What Brokers would refuse, found out without joining a group or making a topic."""

import asyncio
from collections.abc import Iterable

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.names import check_group
from mqbridge.rocketmq.client.subscription import retry_topic

AUTO_CREATE = "autoCreateSubscriptionGroup"


async def check_admission(client: RocketmqClient, addresses: Iterable[str]) -> None:
    """Raises ClusterError (FATAL) when a Broker does not let us in. One that cannot be reached now is left for later."""
    if not client.pool.is_locked:
        return
    found = await asyncio.gather(*map(client.pool.get, addresses), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException) and not (isinstance(error, ClusterError) and error.failure is not Failure.FATAL):
            raise error


async def check_group_can_be_joined(client: RocketmqClient, group: str) -> None:
    """Raises ClusterError (FATAL) for a name that cannot be, and for a group that a Broker lacks and does not make by itself."""
    check_group(group)
    check_group(retry_topic(group))
    known = (await client.groups.configs()).get(group, {})
    for broker, address in (await client.admin.masters()).items():
        if broker not in known and (await client.admin.broker_config(address)).get(AUTO_CREATE) == "false":
            raise ClusterError(
                f"Broker {broker} has no group {group!r} and makes none by itself ({AUTO_CREATE}=false): create it", Failure.FATAL
            )
