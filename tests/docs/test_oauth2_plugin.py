"""The plugin in docs/how-to/locked-pulsar.md asks its token endpoint directly, or through the proxy that it is given."""

import re
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError
from tests.net.web import ForwardProxy, WebService, listening

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "locked-pulsar.md"


@pytest.fixture
def plugin() -> dict[str, Any]:
    code = re.search(r"```python\n(\"\"\"mqbridge_oauth2.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names


async def test_the_token_endpoint_is_asked_as_configured(monkeypatch: pytest.MonkeyPatch, plugin: dict[str, Any]) -> None:
    issuer, proxy = WebService(b'{"access_token": "t", "expires_in": 3600}'), ForwardProxy()
    async with listening(issuer) as port, listening(proxy) as proxy_port:
        options = {"token_url": f"http://127.0.0.1:{port}/token", "client_id": "me", "client_secret": "s"}
        through = f"http://127.0.0.1:{proxy_port}"
        monkeypatch.setenv("HTTP_PROXY", through)
        assert await plugin["make"](dict(options)).credentials() == b"t"
        assert proxy.targets == []
        assert await plugin["make"](options | {"proxy": through}).credentials() == b"t"
        assert proxy.targets == [options["token_url"]]
    with pytest.raises(ClusterError, match=r"through the proxy 127\.0\.0\.1 gave no token to me: ConnectError"):
        await plugin["make"](options | {"proxy": through}).credentials()
