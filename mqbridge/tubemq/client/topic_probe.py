"""Probes with a temporary group whether a Master knows a topic that it does not list to producers.

A restarted Master knows its Brokers and topics at once, but lists a topic to producers only after a Broker has reported that it
accepts messages for it: half a second later with one Broker, later if Brokers start slowly. Until then an existing topic looks
like a missing one. Consumers see the difference: a group is accepted for a configured topic, and refused with TOPIC_NOT_DEPLOYED
for any other (both seen on a real Master that was killed and restarted).
"""

import logging
import secrets

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.tubemq.client.master import Masters, new_client_id
from mqbridge.tubemq.client.membership import Membership
from mqbridge.tubemq.wire import codes

log = logging.getLogger(__name__)

PROBE_GROUP_PREFIX = "mqbridge_looks_"
"""Prefix of the probing groups. Masters forget a group with its last member."""


async def is_deployed(masters: Masters, host: str, topic: str) -> bool:
    """Return True if a group can be registered for the topic. `host` is our address. Raises ClusterError.

    A topic that only listed groups may consume exists, too. Refused credentials tell nothing about the topic and are raised.
    False also if the Master refuses the group for another FATAL reason.
    """
    try:
        await _probe(masters, host, topic)
    except ServerRefused as error:
        if error.failure is not Failure.FATAL or error.code == codes.CERTIFICATE_FAILURE:
            raise
        return error.code == codes.GROUP_FORBIDDEN
    return True


async def check_consumer(masters: Masters, host: str, topic: str) -> None:
    """Raise the Master's refusal of any consumer of the topic, e.g. of our credentials.

    A topic for listed groups only raises nothing: the group in question may be listed.
    """
    try:
        await _probe(masters, host, topic)
    except ServerRefused as error:
        if error.code != codes.GROUP_FORBIDDEN:
            raise


async def _probe(masters: Masters, host: str, topic: str) -> None:
    """Join a temporary group and leave it."""
    member = Membership(masters, f"{PROBE_GROUP_PREFIX}{secrets.token_hex(6)}", [topic], {})
    member.host, member.client_id = host, new_client_id(host, member.group)
    try:
        await member.register([])
    finally:
        await _leave(member)


async def _leave(member: Membership) -> None:
    """Leave even if the registration got no response: the Master may have carried it out."""
    try:
        await member.leave()
    except (ClusterError, ProtocolError) as error:
        log.debug("%s could not tell the Master that it leaves: %s", member.client_id, error)
