"""Calls of the admin APIs of the TubeMQ Master and Broker that tests need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.kit.process import HOST, ClusterError
from tests.kit.tubemq_settings import BROKER_ID, TOKEN, Settings
from tests.kit.web import call

# The minimum that the Master accepts. A full cache (2 MB or 1024 messages) is written to the file at once. Other caches are
# written at the Broker's next check (every 10 s) if they were created or written at least 4 s ago. A store has two caches, which
# use 4 MB of direct memory. Small caches cause rejections with 419: 51 of 100,000 sends of 1 KB by 8 threads, compared to 3 with
# the default of 3 MB or 10 K messages, and none with memory_store=False.
STORE_SETTINGS: Mapping[str, object] = {
    "memCacheMsgSizeInMB": 2,
    "memCacheMsgCntInK": 1,
    "memCacheFlushIntvl": 4000,
    "unflushInterval": 1000,
}
# The Master accepts at most 100 records per call.
TOPICS_PER_CALL = 50


class Admin:
    """Admin calls. They raise ClusterError if a call or an entry of the response is rejected, OSError if there is no response."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.master_url = f"http://{HOST}:{settings.master_web}/webapi.htm"
        self.broker_url = f"http://{HOST}:{settings.broker_web}/broker.htm"

    def master(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call the Master."""
        return _checked(self.master_url, method, {**parameters, "confModAuthToken": TOKEN})

    def broker(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call the Broker."""
        return _checked(self.broker_url, method, parameters)

    def add_broker(self, store_settings: Mapping[str, object]) -> None:
        """Register the Broker at the Master and put it online. Call this before the Broker starts."""
        self.master(
            "admin_add_broker_configure",
            brokerId=BROKER_ID,
            brokerIp=HOST,
            brokerPort=self._settings.broker,
            brokerTLSPort=self._settings.broker_tls,
            brokerWebPort=self._settings.broker_web,
            createUser="tests",
            **store_settings,
        )
        self.master("admin_online_broker_configure", brokerId=BROKER_ID, modifyUser="tests")

    def add_topics(self, topics: Mapping[str, int]) -> None:
        """Configure topics (name -> partitions). A running Broker needs a `reload` to create them."""
        for partitions in set(topics.values()):
            names = [name for name, count in topics.items() if count == partitions]
            for first in range(0, len(names), TOPICS_PER_CALL):
                self.master(
                    "admin_add_new_topic_record",
                    topicName=",".join(names[first : first + TOPICS_PER_CALL]),
                    brokerId=BROKER_ID,
                    numPartitions=partitions,
                    createUser="tests",
                )

    def reload(self) -> None:
        """Let the Master send the changed configuration to the Broker."""
        self.master("admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="tests")

    def leads(self) -> bool:
        """Return True if the Master leads its group. It accepts other calls only then."""
        group = self.master("admin_query_master_group_info")
        return any(node["statusInfo"]["nodeStatus"] == "MASTER" for node in group["data"])

    def settled(self) -> bool:
        """Return True if the Broker is registered and the Master has completed its configuration."""
        status = self.master("admin_query_broker_run_status", brokerId=BROKER_ID)["data"]
        return bool(status) and (status[0]["runStatus"], status[0]["subStatus"]) == ("running", "idle")

    def open_topics(self) -> set[str]:
        """Return the topics that accept publish and subscribe."""
        deployed = self.master("admin_query_topic_deploy_info")["data"]
        return {t["topicName"] for t in deployed if t["isSrvAcceptPublish"] and t["isSrvAcceptSubscribe"]}

    def index_bytes(self, topic: str) -> int:
        """Return the sum of the end offsets of all stores of a topic, in bytes of index; 0 before the first send.

        All partitions of a store share one index, so they have the same end offset.
        """
        response = self.broker("admin_query_broker_all_store_info", topicName=topic)
        stores = [store for entry in response["dataSet"] for store in entry["storeInfo"]]
        return sum(int(store["partitionInfo"][0]["maxOffset"]) for store in stores)


def _checked(url: str, method: str, parameters: Mapping[str, object]) -> dict[str, Any]:
    status, text = call(f"{url}?{urlencode({'method': method, **parameters})}")
    if status != 200:
        raise ClusterError(f"{method} {dict(parameters)} failed with HTTP {status}: {text[:500]}")
    response: dict[str, Any] = json.loads(text)
    rejected = [entry for entry in response.get("data", []) if entry.get("success") is False]
    if not response["result"] or rejected:
        raise ClusterError(f"{method} {dict(parameters)} was rejected: {rejected or text[:500]}")
    return response
