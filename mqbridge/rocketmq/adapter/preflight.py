"""Checks for refusals by Brokers, made before joining a group or creating a topic."""

import asyncio
from collections.abc import Iterable

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.name_rules import check_group
from mqbridge.rocketmq.client.subscription import retry_topic

AUTO_CREATE = "autoCreateSubscriptionGroup"


async def check_admission(client: ClusterClient, addresses: Iterable[str]) -> None:
    """Raise ClusterError (FATAL) if a Broker refuses our certificate or credentials. Skip unreachable Brokers."""
    if not client.pool.may_be_refused:
        return
    results = await asyncio.gather(*map(client.pool.get, addresses), return_exceptions=True)
    for error in results:
        if isinstance(error, BaseException) and not (isinstance(error, ClusterError) and error.failure is not Failure.FATAL):
            raise error


async def check_group_can_be_joined(client: ClusterClient, group: str) -> None:
    """Raise ClusterError (FATAL) for an invalid name, and for a group that a Broker lacks and does not create automatically."""
    check_group(group)
    check_group(retry_topic(group))
    known = (await client.groups.configs()).get(group, {})
    for broker, address in (await client.admin.masters()).items():
        if broker not in known and (await client.admin.broker_config(address)).get(AUTO_CREATE) == "false":
            raise ClusterError(
                f"Broker {broker} has no group {group!r} and does not create it ({AUTO_CREATE}=false): create it there",
                Failure.FATAL,
            )
