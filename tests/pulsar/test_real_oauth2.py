"""The plugin of docs/how-to/locked-pulsar.md with a token endpoint of the test and a real broker."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs

import orjson
import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError
from mqbridge.pulsar.adapter.registration import ADAPTER
from tests.e2e.support import opened
from tests.kit.pulsar_locked import APP, LockedPulsar

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "locked-pulsar.md"
CLIENT_SECRET = "canary-oauth2"
ENTRY_POINTS = "[mqbridge.pulsar_auth]\noauth2 = mqbridge_oauth2:make\n"


class Issuer:
    """A token endpoint that issues tokens of a role to clients with the secret; `asked` counts the requests."""

    def __init__(self, server: LockedPulsar) -> None:
        self._server, self.asked, self.url, self.lives_s = server, 0, "", 3600

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", header, re.IGNORECASE)
        assert length is not None
        form = parse_qs((await reader.readexactly(int(length[1]))).decode())
        self.asked += 1
        good = form == {"grant_type": ["client_credentials"], "client_id": [APP], "client_secret": [CLIENT_SECRET]}
        response = (
            {"access_token": self._server.token(APP, self.lives_s), "expires_in": self.lives_s} if good else {"error": "no"}
        )
        body = orjson.dumps(response)
        status = "200 OK" if good else "401 Unauthorized"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


@pytest_asyncio.fixture
async def issuer(pulsar_locked: LockedPulsar) -> AsyncIterator[Issuer]:
    issuer = Issuer(pulsar_locked)
    server = await asyncio.start_server(issuer.answer, "127.0.0.1", 0)
    issuer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
    yield issuer
    server.close()
    await server.wait_closed()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin of the page."""
    code = re.search(r"```python\n(\"\"\"mqbridge_oauth2.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "mqbridge_oauth2.py").write_text(code[1])
    folder = tmp_path / "mqbridge_oauth2-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mqbridge-oauth2\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugin")
async def test_tokens_of_an_identity_provider(issuer: Issuer, pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic(2)
    auth = {"method": "oauth2", "token_url": issuer.url, "client_id": APP, "client_secret": CLIENT_SECRET}
    async with opened("pulsar", pulsar_locked.config(auth)) as cluster:
        assert await cluster.operations.groups(topic) == [], "the REST interface"
        assert set(await cluster.bounds(topic)) == {"0", "1"}, "brokers"
        assert issuer.asked == 1, "a token is used until it expires"
        assert "token" in cluster.expiries
    wrong = pulsar_locked.config(auth | {"client_secret": "wrong"})
    refused = ADAPTER.make_cluster("pulsar", ADAPTER.cluster_model.model_validate(wrong))
    with pytest.raises(ClusterError, match=f"{issuer.url} gave no token to {APP}: HTTPStatusError"):
        await refused.connect()
    await refused.close()
    assert CLIENT_SECRET not in repr(ADAPTER.cluster_model.model_validate(pulsar_locked.config(auth)))
