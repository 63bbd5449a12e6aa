"""What a Master says to a group that nobody else has: whether it knows a topic of which it tells producers nothing.

A Master that was started again knows its Brokers and its topics at once, and names a topic to producers only when a Broker has
reported that it accepts messages for it: half a second later with one Broker, later where they come up slowly. Meanwhile a topic
that is there looks like one that is not. Consumers are told apart: a group is taken for a topic that is configured, and refused
with TOPIC_NOT_DEPLOYED for any other (both seen on a real Master that was killed and started).
"""

import logging
import secrets

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.tubemq.client.master import Masters, client_id
from mqbridge.tubemq.client.membership import Membership
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

LOOKING = "mqbridge_looks_"
"""How the groups begin that look whether a topic is there. Masters forget a group with its last member."""


async def is_deployed(masters: Masters, host: str, topic: str) -> bool:
    """Whether a group may be registered for the topic. `host` is our address. Raises ClusterError.

    A topic that only listed groups may consume is there. False also when the Master refuses such a group for another reason of
    its own.
    """
    try:
        await _look(masters, host, topic)
    except ServerRefused as error:
        if error.failure is not Failure.FATAL:
            raise
        return error.code == codes.GROUP_FORBIDDEN
    return True


async def check_consumer(masters: Masters, host: str, topic: str) -> None:
    """Raise what the Master says to whoever consumes the topic, such as that it does not take our credentials.

    That the topic is for listed groups only says nothing about a certain one.
    """
    try:
        await _look(masters, host, topic)
    except ServerRefused as error:
        if error.code != codes.GROUP_FORBIDDEN:
            raise


async def _look(masters: Masters, host: str, topic: str) -> None:
    """Join a group that nobody else has, and leave it."""
    member = Membership(masters, f"{LOOKING}{secrets.token_hex(6)}", [topic], {})
    member.host, member.client_id = host, client_id(host, member.group)
    try:
        await member.register([])
    finally:
        await _leave(member)


async def _leave(member: Membership) -> None:
    """Also after no answer: the Master may have registered it."""
    try:
        await member.leave()
    except (ClusterError, ProtocolError) as error:
        log.debug("the Master was not told that %s left: %s", member.client_id, error)
