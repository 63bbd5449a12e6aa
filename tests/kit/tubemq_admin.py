"""The admin APIs of the TubeMQ Master and Broker, as far as tests need them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.kit.process import HOST, ClusterError
from tests.kit.tubemq_settings import BROKER_ID, TOKEN, Settings
from tests.kit.web import call

# The least that the Master takes: a cache of 2 MB or 1024 messages that is full goes to the file at once, and one that
# was made or written 4 s ago at the Broker's next look (every 10 s), whenever its last message came. A store takes two
# caches, 4 MB of direct memory. Refusals with 419 are part of it: 51 of 100,000 sends of 1 KB by 8 threads, 3 with the
# shipped 3 MB or 10 K, none with memory_store=False.
STORE_SETTINGS: Mapping[str, object] = {
    "memCacheMsgSizeInMB": 2,
    "memCacheMsgCntInK": 1,
    "memCacheFlushIntvl": 4000,
    "unflushInterval": 1000,
}
# The Master takes at most 100 records in one call.
TOPICS_PER_CALL = 50


class Admin:
    """Calls of both servers; ClusterError when one, or an entry of its answer, is refused, OSError when nobody answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.master_url = f"http://{HOST}:{settings.master_web}/webapi.htm"
        self.broker_url = f"http://{HOST}:{settings.broker_web}/broker.htm"

    def master(self, method: str, **parameters: object) -> dict[str, Any]:
        """One call of the Master."""
        return _checked(self.master_url, method, {**parameters, "confModAuthToken": TOKEN})

    def broker(self, method: str, **parameters: object) -> dict[str, Any]:
        """One call of the Broker."""
        return _checked(self.broker_url, method, parameters)

    def add_broker(self, store_settings: Mapping[str, object]) -> None:
        """Make the Broker known and put it online; it must not have started."""
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
        """Configure topics, name -> partitions; a Broker that runs learns of them by `reload`."""
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
        """Hand the changed configuration to the Broker."""
        self.master("admin_reload_broker_configure", brokerId=BROKER_ID, modifyUser="tests")

    def leads(self) -> bool:
        """Whether the Master leads its group, which it must before it takes any other call."""
        group = self.master("admin_query_master_group_info")
        return any(node["statusInfo"]["nodeStatus"] == "MASTER" for node in group["data"])

    def settled(self) -> bool:
        """Whether the Broker is registered and the Master has gone through all steps of its configuration."""
        status = self.master("admin_query_broker_run_status", brokerId=BROKER_ID)["data"]
        return bool(status) and (status[0]["runStatus"], status[0]["subStatus"]) == ("running", "idle")

    def open_topics(self) -> set[str]:
        """The topics that accept publish and subscribe."""
        deployed = self.master("admin_query_topic_deploy_info")["data"]
        return {t["topicName"] for t in deployed if t["isSrvAcceptPublish"] and t["isSrvAcceptSubscribe"]}

    def index_bytes(self, topic: str) -> int:
        """Bytes of index that the Broker has handed out for a topic, all stores; 0 before the first send.

        The offsets of a store's partitions are those of the store: one index file serves them all.
        """
        answer = self.broker("admin_query_broker_all_store_info", topicName=topic)
        stores = [store for entry in answer["dataSet"] for store in entry["storeInfo"]]
        return sum(int(store["partitionInfo"][0]["maxOffset"]) for store in stores)


def _checked(url: str, method: str, parameters: Mapping[str, object]) -> dict[str, Any]:
    status, text = call(f"{url}?{urlencode({'method': method, **parameters})}")
    if status != 200:
        raise ClusterError(f"{method} {dict(parameters)} was answered with HTTP {status}: {text[:500]}")
    answer: dict[str, Any] = json.loads(text)
    refused = [entry for entry in answer.get("data", []) if entry.get("success") is False]
    if not answer["result"] or refused:
        raise ClusterError(f"{method} {dict(parameters)} was refused: {refused or text[:500]}")
    return answer
