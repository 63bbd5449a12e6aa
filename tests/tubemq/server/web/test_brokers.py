"""The Master about itself and its Broker."""

import pytest

from mqbridge.tubemq.server.broker import BROKER_ID
from tests.tubemq.server.web.web_bench import HOST, web_bench


async def test_there_is_one_master_and_one_broker() -> None:
    async with web_bench() as web:
        group = await web.master("admin_query_master_group_info")
        assert (group["result"], group["count"], group["data"][0]["hostName"]) == (True, 1, HOST)
        assert group["data"][0]["statusInfo"]["nodeStatus"] == "MASTER"
        (status,) = (await web.master("admin_query_broker_run_status"))["data"]
        (settings,) = (await web.master("admin_query_broker_configure", brokerId=BROKER_ID))["data"]
        for found in (status, settings):
            assert (found["brokerId"], found["manageStatus"]) == (BROKER_ID, "online")
            assert (found["brokerIp"], found["brokerPort"], found["brokerWebPort"]) == (HOST, web.served.listener.port.port, 8080)
        assert (status["runStatus"], status["subStatus"]) == ("running", "idle")
        for method in ("admin_query_broker_run_status", "admin_query_broker_configure"):
            assert (await web.master(method, brokerId="2,3"))["data"] == []


@pytest.mark.parametrize(("advertise", "host"), [("10.1.2.3:9000", "10.1.2.3"), ("[2001:db8::1]:9000", "[2001:db8::1]")])
async def test_the_configured_address_is_told(advertise: str, host: str) -> None:
    async with web_bench(advertise=advertise) as web:
        (status,) = (await web.master("admin_query_broker_run_status"))["data"]
        assert (status["brokerIp"], status["brokerPort"], status["brokerWebPort"]) == (host, 9000, 8080)


async def test_a_reload_changes_nothing() -> None:
    async with web_bench(manage=False) as web:
        answer = await web.master("admin_reload_broker_configure", brokerId=f"{BROKER_ID},7", modifyUser="tester")
        done = {"brokerId": BROKER_ID, "brokerIp": HOST, "success": True, "errCode": 200, "errInfo": "Ok!"}
        unknown = {"brokerId": 7, "brokerIp": "", "success": False, "errCode": 401, "errInfo": "The broker configure not exist!"}
        assert answer["data"] == [done, unknown]
        refused = await web.master("admin_reload_broker_configure", modifyUser="tester")
        assert refused["errMsg"] == "Parameter brokerId is missing or value is blank!"
        assert not (await web.master("admin_reload_broker_configure", brokerId=BROKER_ID))["result"]
