"""The web side answers as a real broker does: the same calls, with the same statuses and fields."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.message import Message
from tests.kit.pulsar import Pulsar
from tests.kit.web import call
from tests.pulsar.server.web_bench import WebBench, web_bench

pytestmark = pytest.mark.cluster

LATEST = {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1, "partitionIndex": -1}
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
CALLS: list[tuple[str, str, Any]] = [
    ("PUT", "PLAIN", None),
    ("PUT", "PARTS", None),
    ("PUT", "PARTS/partitions", 2),
    ("PUT", "NEW/partitions", 0),
    ("PUT", "NEW-partition-1", None),
    ("GET", "PLAIN/partitions", None),
    ("GET", "PARTS/partitions", None),
    ("GET", "PARTS-partition-1/partitions", None),
    ("GET", "NEW/partitions", None),
    ("POST", "PARTS/partitions", 1),
    ("POST", "PARTS/partitions", 4),
    ("POST", "PLAIN/partitions", 4),
    ("POST", "NEW/partitions", 4),
    ("PUT", "PLAIN/subscription/end", LATEST),
    ("PUT", "PLAIN/subscription/end", LATEST),
    ("PUT", "PLAIN/subscription/begin", EARLIEST),
    ("PUT", "PLAIN/subscription/text", "earliest"),
    ("PUT", "PLAIN/subscription/none", None),
    ("PUT", "PLAIN/subscription/a%252Fb", None),
    ("PUT", "PARTS/subscription/s", EARLIEST),
    ("GET", "PLAIN/subscriptions", None),
    ("GET", "PARTS/subscriptions", None),
    ("GET", "NEW/subscriptions", None),
    ("GET", "PLAIN/stats", None),
    ("GET", "PARTS/stats", None),
    ("GET", "PARTS-partition-0/stats", None),
    ("GET", "PARTS/partitioned-stats", None),
    ("GET", "PARTS/partitioned-stats?perPartition=false", None),
    ("GET", "PLAIN/partitioned-stats", None),
    ("GET", "PLAIN/internalStats", None),
    ("GET", "PARTS/internalStats", None),
    ("GET", "PARTS/partitioned-internalStats", None),
    ("GET", "PLAIN/lastMessageId", None),
    ("GET", "PARTS-partition-1/lastMessageId", None),
    ("GET", "PARTS/lastMessageId", None),
    ("GET", "PLAIN/messageid/0", None),
    ("GET", "PLAIN/subscription/begin/position/1", None),
    ("GET", "PLAIN/subscription/begin/position/99", None),
    ("GET", "PLAIN/examinemessage?initialPosition=earliest&messagePosition=2", None),
    ("GET", "PLAIN/examinemessage?initialPosition=latest&messagePosition=1", None),
    ("GET", "PARTS-partition-1/examinemessage", None),
    ("POST", "PLAIN/subscription/begin/skip/2", None),
    ("POST", "PLAIN/subscription/nope/skip/2", None),
    ("POST", "PARTS/subscription/s/skip/2", None),
    ("POST", "PLAIN/subscription/begin/skip_all", None),
    ("POST", "PLAIN/subscription/begin/resetcursor/0", None),
    ("POST", "PLAIN/subscription/nope/resetcursor/0", None),
    ("POST", "PLAIN/subscription/begin/resetcursor", {"ledgerId": 1 << 40, "entryId": 1, "partitionIndex": -1}),
    ("POST", "PLAIN/subscription/begin/resetcursor", "garbage"),
    ("POST", "PLAIN/subscription/begin/expireMessages/10000", None),
    ("DELETE", "PLAIN/subscription/begin", None),
    ("DELETE", "PLAIN/subscription/begin", None),
    ("DELETE", "PARTS/subscription/s", None),
    ("PUT", "PLAIN/unload", None),
    ("PUT", "PARTS/unload", None),
    ("GET", "/lookup/v2/topic/persistent/public/default/PLAIN", None),
    ("GET", "/lookup/v2/topic/persistent/public/default/PARTS-partition-0", None),
    ("GET", "/lookup/v2/topic/persistent/public/missing/PLAIN", None),
    ("GET", "/admin/v2/persistent/public/default", None),
    ("GET", "/admin/v2/persistent/public/default/partitioned", None),
    ("GET", "/admin/v2/non-persistent/public/default", None),
    ("GET", "/admin/v2/namespaces/public/default/topics", None),
    ("GET", "/admin/v2/persistent/public/missing", None),
    ("GET", "/admin/v2/namespaces/public", None),
    ("GET", "/admin/v2/namespaces/missing", None),
    ("GET", "/admin/v2/namespaces/public/default", None),
    ("GET", "/admin/v2/namespaces/public/missing", None),
    ("GET", "/admin/v2/tenants", None),
    ("GET", "/admin/v2/tenants/public", None),
    ("GET", "/admin/v2/tenants/missing", None),
    ("GET", "/admin/v2/clusters", None),
    ("GET", "/admin/v2/clusters/missing", None),
    ("GET", "/admin/v2/brokers/health", None),
    ("GET", "/admin/v2/brokers", None),
    ("GET", "/admin/v2/brokers/leaderBroker", None),
    ("GET", "/admin/v2/schemas/public/default/NEW/schema", None),
    ("POST", "/admin/v2/schemas/public/default/PARTS/schema", {"type": "INT32", "schema": "", "properties": {"a": "b"}}),
    ("GET", "/admin/v2/schemas/public/default/PARTS/schema", None),
    ("GET", "/admin/v2/schemas/public/default/PARTS/schema/0", None),
    ("GET", "/admin/v2/schemas/public/default/PARTS/schema/7", None),
    ("DELETE", "/admin/v2/schemas/public/default/PARTS/schema", None),
    ("DELETE", "PARTS", None),
    ("DELETE", "PLAIN/partitions", None),
    ("DELETE", "NEW", None),
    ("DELETE", "PARTS/partitions", None),
    ("DELETE", "PARTS/partitions", None),
    ("DELETE", "PLAIN?force=true", None),
    ("DELETE", "PLAIN", None),
]


@pytest_asyncio.fixture(params=["backing", "own"])
async def web(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WebBench]:
    async with web_bench(tmp_path, request.param) as bench:
        yield bench


async def test_statuses_and_fields_are_those_of_a_broker(web: WebBench, pulsar: Pulsar) -> None:
    names = {word: f"{word.lower()}{uuid4().hex[:8]}" for word in ("PLAIN", "PARTS", "NEW")}
    pulsar.create_topic(names["PLAIN"])
    pulsar.create_topic(names["PARTS"], 3)
    await web.call("PUT", names["PLAIN"], status=204)
    await web.call("PUT", f"{names['PARTS']}/partitions", 3, status=204)
    for number in range(3):
        pulsar.send(f"persistent://public/default/{names['PLAIN']}", f"m{number}")
        await web.send(names["PLAIN"], Message(b"m%d" % number))
    differences = []
    for method, pattern, body in CALLS:
        path = pattern
        for word, name in names.items():
            path = path.replace(word, name)
        if not path.startswith("/"):
            path = f"/admin/v2/persistent/public/default/{path}"
        status, text = call(f"{pulsar.admin_url}{path}", method=method, body=body)
        response = await web.client.request(method, path, json=body)
        if response.status_code != status:
            differences.append(f"{method} {pattern}: {response.status_code} {response.text}, and the broker: {status} {text}")
        elif status == 200:
            differences += [f"{method} {pattern}: {each}" for each in compare(parse(text), parse(response.text))]
    assert not differences, "\n".join(differences)


def parse(text: str) -> Any:
    """Return the JSON of a response; payloads and plain text are no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def compare(broker: Any, ours: Any, path: str = "") -> list[str]:
    """Return where our response has a field that a broker's has not, or a value of another type."""
    if type(broker) is not type(ours):
        return [f"{path}: {type(ours).__name__} instead of {type(broker).__name__}"]
    if isinstance(ours, dict):
        if unknown := ours.keys() - broker.keys() - {name for name in ours if name.startswith("persistent://")}:
            return [f"{path}: unknown fields {sorted(unknown)}"]
        return [each for key in ours.keys() & broker.keys() for each in compare(broker[key], ours[key], f"{path}.{key}")]
    if isinstance(ours, list) and ours and broker:
        return compare(broker[0], ours[0], f"{path}[0]")
    return []
