"""A listener for TubeMQ clients over the embedded log, with a client of its web methods."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.tubemq.server.serving import GROUP, TOPIC, ServedClient, TubeMQServing, serving

HOST = "gateway.example"


class TubeMQWeb:
    """See the module."""

    def __init__(self, served: TubeMQServing) -> None:
        self.served = served
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(served.server.web), base_url=f"http://{HOST}:8080", trust_env=False
        )

    async def master(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the Master, with the parameters in the query."""
        return await self._get("/webapi.htm", method, parameters)

    async def broker(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the Broker, with the parameters in the query."""
        return await self._get("/broker.htm", method, parameters)

    async def _get(self, path: str, method: str, parameters: dict[str, object]) -> dict[str, Any]:
        response = await self.http.get(path, params={"method": method} | {name: str(value) for name, value in parameters.items()})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def consume(self, *topics: str, group: str = GROUP, client_id: str = "c") -> ServedClient:
        """Return a consumer that has all partitions of its topics."""
        consumer = await self.served.connect(client_id)
        assert (await consumer.join(*topics, group=group)).errCode == 200
        refs = await consumer.assigned(group)
        for ref in refs:
            assert (await consumer.own(ref.topic, ref.partition, group)).errCode == 200
        await consumer.beat(group=group, held=refs)
        return consumer

    async def offsets(self, group: str = GROUP, topic: str = TOPIC) -> dict[int, int]:
        """Return where a group is, by partition."""
        answer = await self.broker("admin_query_offset", groupName=group, topicName=topic)
        return {
            each["partitionId"]: each["curOffset"]
            for entry in answer["dataSet"]
            for sub in entry["subInfo"]
            for each in sub["offsets"]
        }


@asynccontextmanager
async def web_bench(**changes: Any) -> AsyncIterator[TubeMQWeb]:
    """Start a listener; `changes` are settings of it."""
    async with serving(**changes) as served:
        web = TubeMQWeb(served)
        try:
            yield web
        finally:
            await web.http.aclose()
