"""Finds out whether a Master knows a topic that it does not list to producers: tries to join a temporary group on the topic.

A restarted Master knows its Brokers and topics at once. But it lists a topic to producers only after a Broker has reported that
it accepts messages for the topic: half a second later with one Broker, later if Brokers start slowly. Until then a producer
cannot tell an existing topic from a missing one. A consumer can: the Master accepts a group for a configured topic, and refuses a
group for any other topic with TOPIC_NOT_DEPLOYED. Both responses were observed at a real Master after a restart.
"""

import logging
import secrets

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.tubemq.client.connection.master import Masters, new_client_id
from mqbridge.tubemq.client.consumer.membership import Membership
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

PROBE_GROUP_PREFIX = "mqbridge_looks_"
"""Prefix of the temporary groups. A Master deletes a group when its last member leaves."""


async def topic_exists(masters: Masters, host: str, topic: str) -> bool:
    """Return True if the Master knows the topic. `host` is our IPv4 address, a part of our client id. Raises ClusterError.

    The Master knows the topic if it accepts the temporary group, or refuses it because only authorized groups may consume the
    topic. Any other FATAL refusal returns False, except for refused credentials: they tell nothing about the topic, so the error
    is raised.
    """
    try:
        await _probe(masters, host, topic)
    except ServerRefused as error:
        if error.failure is not Failure.FATAL or error.code == codes.CERTIFICATE_FAILURE:
            raise
        return error.code == codes.GROUP_FORBIDDEN
    return True


async def check_consumer(masters: Masters, host: str, topic: str) -> None:
    """Raise the Master's error if it refuses consumers of the topic, for example because of our credentials.

    If only authorized groups may consume the topic, nothing is raised: the caller's group may be one of them.
    """
    try:
        await _probe(masters, host, topic)
    except ServerRefused as error:
        if error.code != codes.GROUP_FORBIDDEN:
            raise


async def _probe(masters: Masters, host: str, topic: str) -> None:
    """Join a temporary group and leave it."""
    member = Membership(masters, f"{PROBE_GROUP_PREFIX}{secrets.token_hex(6)}", topics=[topic], filters={})
    member.host, member.client_id = host, new_client_id(host, member.group)
    try:
        await member.register(held=[])
    finally:
        await _leave(member)


async def _leave(member: Membership) -> None:
    """Leave even if the registration got no response: the Master may have carried it out."""
    try:
        await member.leave()
    except (ClusterError, ProtocolError) as error:
        log.debug(
            "leaving temporary group %s as %s failed, the Master removes the member after a timeout: %s",
            member.group,
            member.client_id,
            error,
        )
