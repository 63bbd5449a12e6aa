"""What Brokers would refuse, found out without joining a group or making a topic."""

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.names import check_group
from mqbridge.rocketmq.client.subscription import retry_topic

AUTO_CREATE = "autoCreateSubscriptionGroup"


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
