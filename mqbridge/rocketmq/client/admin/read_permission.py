"""Topics that nobody may read: brokers refuse pulls and POPs, and name servers list no readable queue.

Old brokers create dead-letter topics (`%DLQ%GROUP`) without the permission to read, and a topic keeps its permission when its
broker is upgraded; 4.9.7 and 5.3.3 create them with it. Operators take the permission away for a while.
"""

from dataclasses import replace

from mqbridge.errors import ClusterError
from mqbridge.rocketmq.client.admin.admin import Admin
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.bodies.routes import Perm

DEAD_LETTER_PREFIX = "%DLQ%"
"""Beginning of the name of a group's dead-letter topic."""


def is_readable(config: TopicConfig) -> bool:
    """Return True if a broker with these settings of a topic lets clients read it."""
    return bool(config.perm & Perm.READ) and config.read_queues > 0


async def why_unreadable(admin: Admin, topic: str) -> str:
    """Return why no queue of a topic may be read, and what to do. It exists, but its route has no readable queue."""
    try:
        configs = await admin.topic_config(topic)
    except ClusterError:  # for example, because these credentials may not read the settings
        configs = {}
    reasons = sorted(f"{_reason(config)} at broker {broker}" for broker, config in configs.items() if not is_readable(config))
    where = f" ({', '.join(reasons)})" if reasons else ""
    whose = ", as old brokers create dead-letter topics" if topic.startswith(DEAD_LETTER_PREFIX) else ""
    return f"nobody may read topic {topic}{where}{whose}: {advice(topic)}"


def advice(topic: str) -> str:
    """Return how to permit reading of a topic."""
    return f"`mqbridge topics '{topic}' --permit-reading` permits it for good, and so does `mqadmin updateTopicPerm -p 6`"


def _reason(config: TopicConfig) -> str:
    if not config.perm & Perm.READ:
        return f"its permission is {config.perm}, without read,"
    return "it has 0 readable queues"


async def permit_reading(admin: Admin, topic: str) -> list[str]:
    """Permit reading of a topic at each master that forbids it, and wait until the route contains the queues.

    The permission to write stays as it is. A broker without readable queues gets as many as it has writable ones. Returns the
    names of the changed brokers. Raises ClusterError; RequestTimeout if the change does not appear in the route.
    """
    masters = await admin.masters()
    changed: dict[str, tuple[int, int]] = {}
    for broker, config in (await admin.topic_config(topic)).items():
        if not is_readable(config):
            readable = config.read_queues or config.write_queues
            permitted = replace(config, perm=config.perm | Perm.READ, read_queues=readable)
            await admin.update_topic_at(masters[broker], permitted)
            changed[broker] = readable, config.write_queues if config.perm & Perm.WRITE else 0
    if changed:
        await admin.wait_for_queues(topic, changed)
    return sorted(changed)
