"""The Master about itself and about its Broker. There is one of each, and both are this listener."""

import time
from collections.abc import Mapping

from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.web.answers import DONE, MISSING, Answer, master_answer
from mqbridge.tubemq.server.web.context import WebContext, asks_for_broker
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.requests import Parameters


class BrokerPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._since_ms = round(time.time() * 1000)

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Master."""
        return {
            "admin_query_master_group_info": WebMethod(self._masters),
            "admin_query_broker_run_status": WebMethod(self._status),
            "admin_query_broker_configure": WebMethod(self._settings),
            "admin_reload_broker_configure": WebMethod(self._reload, modifies=True),
        }

    async def _masters(self, parameters: Parameters) -> Answer:
        name = self._context.broker.services.name
        master = {
            "index": 1,
            "name": name,
            "hostName": self._context.address(parameters.request).host,
            "statusInfo": {"nodeStatus": "MASTER", "joinTime": str(self._since_ms)},
        }
        group = {"groupName": name, "isPrimaryNodeActive": False}
        return {"result": True, "errCode": 0, "errMsg": "Ok"} | group | {
            "data": [master],
            "count": 1,
            "groupStatus": "Running-ReadWrite",
        }  # fmt: skip

    async def _status(self, parameters: Parameters) -> Answer:
        if not asks_for_broker(parameters):
            return master_answer([])
        status = {
            **self._broker(parameters),
            "enableTLS": False,
            "isRepAbnormal": False,
            "isAutoForbidden": False,
            "runStatus": "running",
            "subStatus": "idle",
            "isConfChanged": "false",
            "isConfLoaded": "true",
            "isBrokerOnline": "true",
            "brokerVersion": "-",
            "acceptPublish": "true",
            "acceptSubscribe": "true",
        }
        return master_answer([status])

    async def _settings(self, parameters: Parameters) -> Answer:
        """Return the Broker's configuration: `numPartitions` is that of topics which clients create."""
        if not asks_for_broker(parameters):
            return master_answer([])
        settings = {
            **self._broker(parameters),
            "isConfChanged": False,
            "isConfLoaded": True,
            "regionId": 0,
            "groupId": 0,
            "numTopicStores": 1,
            "numPartitions": self._context.broker.services.topics.created_partitions or 1,
            "acceptPublish": True,
            "acceptSubscribe": True,
        }
        return master_answer([settings])

    def _broker(self, parameters: Parameters) -> Answer:
        address = self._context.address(parameters.request)
        return {
            "brokerId": BROKER_ID,
            "brokerIp": address.host,
            "brokerPort": address.port,
            "brokerWebPort": address.web_port,
            "manageStatus": "online",
        }

    async def _reload(self, parameters: Parameters) -> Answer:
        """Do nothing: a change of a topic takes effect at once, and scripts send this after each."""
        parameters.required("modifyUser")
        return master_answer([self._reloaded(broker, parameters) for broker in parameters.numbers("brokerId", required=True)])

    def _reloaded(self, broker: int, parameters: Parameters) -> Answer:
        if broker != BROKER_ID:
            told = {"success": False, "errCode": MISSING, "errInfo": "The broker configure not exist!"}
            return {"brokerId": broker, "brokerIp": ""} | told
        host = self._context.address(parameters.request).host
        return {"brokerId": broker, "brokerIp": host, "success": True, "errCode": DONE, "errInfo": "Ok!"}
