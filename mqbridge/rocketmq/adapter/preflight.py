"""Early checks that the Brokers accept this client's certificate and credentials, and that a group can be joined."""

import asyncio
from collections.abc import Iterable

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin.name_rules import check_group
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.subscription import retry_topic

AUTO_CREATE = "autoCreateSubscriptionGroup"
"""The Broker setting that lets a client create a group by joining it."""


async def check_admission(client: ClusterClient, addresses: Iterable[str]) -> None:
    """Connect to these Brokers. Raise ClusterError (FATAL) if one refuses our certificate or credentials.

    Other cluster errors are ignored: a Broker may be unreachable for a moment. Without TLS and credentials nothing is checked,
    because there is nothing that a Broker could refuse.
    """
    if not client.pool.may_be_refused:
        return
    results = await asyncio.gather(*map(client.pool.get, addresses), return_exceptions=True)
    for result in results:
        may_be_temporary = isinstance(result, ClusterError) and result.failure is not Failure.FATAL
        if isinstance(result, BaseException) and not may_be_temporary:
            raise result


async def check_group_can_be_joined(client: ClusterClient, group: str) -> None:
    """Raise ClusterError (FATAL) if the name is invalid, or a Broker neither has the group nor creates it automatically."""
    check_group(group)
    check_group(retry_topic(group))  # the prefix makes the name of the retry topic longer, and the same limit applies to it
    configs = (await client.groups.configs()).get(group, {})  # by Broker name
    for broker, address in (await client.admin.masters()).items():  # a Broker creates groups unless AUTO_CREATE is false
        if broker not in configs and (await client.admin.broker_config(address)).get(AUTO_CREATE) == "false":
            raise ClusterError(
                f"Broker {broker} has no group {group!r} and does not create it ({AUTO_CREATE}=false): create it there",
                Failure.FATAL,
            )
