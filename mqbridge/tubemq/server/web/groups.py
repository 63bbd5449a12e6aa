"""The groups of consumers that have members here, as the Master knows them."""

from collections.abc import Mapping

from mqbridge.net.addresses import split_address
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.consumer_group import ConsumerGroup, Mode, ServedMember
from mqbridge.tubemq.server.web.answers import Answer, master_answer
from mqbridge.tubemq.server.web.context import WebContext
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.requests import Parameters

_MODES = {Mode.ASSIGNED: "unbound", Mode.BOUND: "bound", Mode.CHOSEN: "client-rebalance"}


class GroupPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Master."""
        return {
            "admin_query_sub_info": WebMethod(self._subscriptions),
            "admin_query_consume_group_detail": WebMethod(self._details),
        }

    async def _subscriptions(self, parameters: Parameters) -> Answer:
        names = set(parameters.names("groupName") or parameters.names("consumeGroup"))
        topics = set(parameters.names("topicName"))
        found = [
            {"consumeGroup": group.name, "topicSet": sorted(group.terms.topics), "consumerNum": len(group.members)}
            for group in self._context.consumers.groups.values()
            if (not names or group.name in names) and (not topics or topics & group.terms.topics)
        ]
        return master_answer(found)

    async def _details(self, parameters: Parameters) -> Answer:
        """Return the members of a group with their partitions; those at other gateways are not known here."""
        name = parameters.text("groupName") or parameters.required("consumeGroup")
        group = self._context.consumers.groups.get(name)
        members = [] if group is None else [self._member(group, member, parameters) for member in group.members.values()]
        head = {"result": True, "errCode": 0, "errMsg": "OK", "count": len(members)}
        if group is None:
            head |= {"topicSet": [], "consumeGroup": name, "re-rebalance": {}, "isBandConsume": _MODES[Mode.ASSIGNED]}
            return head | {"rebInfo": {"isRebalanced": False}, "filterConds": {}, "data": members}
        terms = group.terms
        head |= {"topicSet": sorted(terms.topics), "consumeGroup": name, "re-rebalance": {}, "isBandConsume": _MODES[terms.mode]}
        if terms.mode is Mode.BOUND:
            head |= {
                "isNotAllocate": not group.is_allocated,
                "sessionKey": terms.session_key,
                "isSelectBig": terms.select_big,
                "reqSourceCount": terms.source_count,
                "curSourceCount": len(members),
            }
        conditions = {topic: sorted(types) for topic, types in terms.conditions.items()}
        return head | {
            "rebInfo": {"isRebalanced": True, "checkPasted": True},
            "filterConds": conditions,
            "data": members,
        }

    def _member(self, group: ConsumerGroup, member: ServedMember, parameters: Parameters) -> Answer:
        address = self._context.address(parameters.request)
        broker = f"{BROKER_ID}:{address.host}:{address.port}"
        owned = sorted(partition.id for partition in group.partitions.values() if partition.owner == member.client_id)
        found: Answer = {"consumerId": member.client_id, "receivedFrom": _host(member.link.peer), "isOverTLS": False}
        if group.terms.mode is Mode.BOUND:
            required = [
                {"partitionKey": f"{BROKER_ID}:{each.topic}:{each.partition}", "Offset": offset}
                for each, offset in member.required.items()
            ]
            found |= {"initReSetPartCount": len(required), "initReSetPartInfo": required}
        parts = [{"partId": each.partition, "brokerAddr": broker, "topicName": each.topic} for each in owned]
        return found | {"parCount": len(parts), "parInfo": parts}


def _host(peer: str) -> str:
    """Return the host of a client's address."""
    try:
        return split_address(peer, 1)[0]
    except ValueError:
        return peer
