"""Replies to request messages: they are passed on to the client that has asked, which has to be connected here."""

import time

from mqbridge.errors import ConnectionLost
from mqbridge.rocketmq.server.broker import Broker
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.sends import result
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import ReplyPushHeader, SendHeader
from mqbridge.rocketmq.wire.ids import format_host, offset_id
from mqbridge.rocketmq.wire.properties import Name, find

REPLY_S = 2.0
"""Maximum time in which the client that has asked takes the reply: the one that replies waits little longer."""


class Replies:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def serve(self, link: ServedConnection, request: Command) -> Command:
        """Serve SEND_REPLY_MESSAGE and SEND_REPLY_MESSAGE_V2."""
        header = SendHeader.decode(request.ext)
        properties = header.properties.encode()
        client_id = find(properties, Name.REPLY_TO_CLIENT)
        if client_id is None:
            raise CodedRefusal(f"the reply does not say to whom it goes ({Name.REPLY_TO_CLIENT})", Status.SYSTEM_ERROR)
        target = self._broker.clients.link_of(client_id)
        if target is None or not target.alive:
            raise CodedRefusal(f"the client {client_id} that has asked is not connected to this gateway", Status.SYSTEM_ERROR)
        push = ReplyPushHeader(
            header.producer_group,
            header.topic,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp,
            header.flag,
            born_host=link.peer,
            store_host=format_host(link.host),
            store_timestamp=round(time.time() * 1000),
            properties=header.properties,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        try:
            answer = await target.ask(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, push, request.body, REPLY_S)
        except (ConnectionLost, TimeoutError) as error:
            raise CodedRefusal(f"the client {client_id} does not take the reply: {error}", Status.SYSTEM_ERROR) from error
        if answer.code != Status.SUCCESS:
            raise CodedRefusal(f"the client {client_id} does not take the reply: {answer.remark}", Status.SYSTEM_ERROR)
        return result(request, offset_id(link.host, 0), header.queue_id, 0, find(properties, Name.UNIQ_KEY))
