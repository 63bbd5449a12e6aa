"""What holds for all methods of both pages."""

import asyncio
from urllib.parse import urlencode

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.server.web import app
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import TOPIC
from tests.tubemq.server.web.web_bench import web_bench

MASTER, BROKER = "/webapi.htm", "/broker.htm"


@pytest.mark.parametrize(
    ("path", "query", "text"),
    [
        (MASTER, "method=nonsense", "Bad request from client, unsupported method!"),
        (MASTER, "method=admin_query_offset", "Bad request from client, unsupported method!"),
        (MASTER, "", "Bad request from client, Please take with method parameter!"),
        (BROKER, "method=nonsense", "Unsupported method nonsense"),
        (BROKER, "method=admin_query_topic_info", "Unsupported method admin_query_topic_info"),
        (BROKER, "x=1", "Please take with method parameter! "),
    ],
)
async def test_an_unknown_method_is_refused_as_by_a_server(path: str, query: str, text: str) -> None:
    async with web_bench() as web:
        response = await web.http.get(f"{path}?{query}")
        assert response.status_code == 200
        assert response.json() == {"result": False, "errCode": 400, "errMsg": text}


async def test_parameters_come_in_the_query_or_in_a_form() -> None:
    async with web_bench() as web:
        await web.served.create()
        form = {"topicName": TOPIC, "method": "nonsense"}
        response = await web.http.post(f"{BROKER}?method=admin_query_pubinfo", data=form)
        assert [each["topicName"] for each in response.json()["dataSet"]] == [TOPIC], "the query comes first"
        response = await web.http.post(MASTER, data={"method": "admin_query_topic_info", "topicName": "none"})
        assert response.json()["count"] == 0


async def test_forms_are_limited() -> None:
    async with web_bench() as web:
        assert (await web.http.post(MASTER, content=b"x" * (257 << 10))).status_code == 413
        many = urlencode([(f"p{number}", "") for number in range(300)])
        assert not (await web.http.post(MASTER, content=many.encode())).json()["result"]
        assert (await web.http.put(MASTER)).status_code == 405
        assert (await web.http.get("/elsewhere")).status_code == 404


@pytest.mark.parametrize("headers", [{"Origin": "http://x"}, {"Referer": "http://x/"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_in_a_browser_changes_nothing(headers: dict[str, str]) -> None:
    async with web_bench() as web:
        asked = {"topicName": "new", "brokerId": str(BROKER_ID), "createUser": "tester"}
        response = await web.http.get(MASTER, params={"method": "admin_add_new_topic_record", **asked}, headers=headers)
        assert response.json()["errMsg"] == "pages in a browser may change nothing"
        assert (await web.http.get(MASTER, params={"method": "admin_query_topic_info"}, headers=headers)).json()["count"] == 0


async def test_a_failure_of_the_cluster_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_bench() as web:

        async def fail(_: str) -> None:
            raise ClusterError("no answer", Failure.RETRY)

        monkeypatch.setattr(web.served.broker, "find_topic", fail)
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC)
        assert answer == {"result": False, "errCode": 500, "errMsg": "no answer"}


async def test_a_request_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_bench() as web:

        async def wait(_: str) -> None:
            await asyncio.sleep(PATIENCE_S)

        monkeypatch.setattr(web.served.broker, "find_topic", wait)
        monkeypatch.setattr(app, "REQUEST_S", 0.01)
        answer = await web.broker("admin_snapshot_message", topicName=TOPIC)
        assert (answer["errCode"], answer["errMsg"]) == (500, "the cluster behind this listener has not answered in time")
