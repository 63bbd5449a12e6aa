"""Authentication methods: their credentials for brokers and the REST interface, and their texts for users."""

import base64
import json
import time
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError
from mqbridge.net.secret import Secret
from mqbridge.pulsar.client.connection.auth import NO_AUTH, BasicAuth, Claims, TlsAuth, TokenAuth, claims_of
from tests.kit.authority import Authority


def jwt(**claims: object) -> str:
    """Return an unsigned JWT: nothing in these tests verifies it."""
    parts = ({"alg": "HS256"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + ".c2ln"


def test_claims_of_a_jwt() -> None:
    assert claims_of(jwt(sub="app", exp=1_700_000_000)) == Claims("app", 1_700_000_000)
    assert claims_of(jwt(sub="ä" * 7)) == Claims("ä" * 7, None)


@pytest.mark.parametrize(
    "token",
    ["", "opaque", "a.b", "a.!.c", "a.e30.c", f"a.{base64.b64encode(b'[1]').decode()}.c", "a.bm9uZQ.c", jwt(sub=1, exp=True)],
)
def test_a_token_that_is_no_jwt_has_no_claims(token: str) -> None:
    assert claims_of(token) == Claims()


async def test_a_token_from_a_file_is_read_every_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    auth = TokenAuth(Secret(file=file))
    with pytest.raises(ClusterError, match="token"):
        await auth.credentials()
    first, second = jwt(sub="app", exp=time.time() + 60), jwt(sub="other")
    file.write_text(first + "\n")
    assert (auth.method, await auth.credentials()) == ("token", first.encode())
    assert auth.principal == "app"
    assert auth.expires_at is not None
    file.write_text(second)
    assert await auth.headers() == {"Authorization": f"Bearer {second}", "X-Pulsar-Auth-Method-Name": "token"}
    assert (auth.principal, auth.expires_at) == ("other", None)
    file.unlink()
    assert await auth.credentials(fresh=True) == second.encode(), "the last one, while there is none"
    assert (second in auth.description + auth.remedy, f"file {file}" in auth.description) == (False, True)


async def test_the_remedy_for_an_expired_token_names_the_expiry_time(tmp_path: Path) -> None:
    auth = TokenAuth(Secret(jwt(sub="app", exp=1_700_000_000)))
    await auth.credentials()
    assert auth.remedy == "it expired at 2023-11-14 22:13:20 UTC: put a new token there"


async def test_basic_authentication() -> None:
    auth = BasicAuth("app", Secret("open sesame"))
    assert (auth.method, await auth.credentials()) == ("basic", b"app:open sesame")
    # RFC 7617
    assert await auth.headers() == {"Authorization": "Basic YXBwOm9wZW4gc2VzYW1l", "X-Pulsar-Auth-Method-Name": "basic"}
    assert auth.principal == "app"
    assert "sesame" not in auth.description + auth.remedy + repr(auth)


async def test_the_role_of_a_client_certificate_is_its_common_name(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("app")
    auth = TlsAuth(own.certificate)
    assert (auth.method, await auth.credentials(), auth.principal) == ("tls", b"", "app")
    assert await auth.headers() == {"X-Pulsar-Auth-Method-Name": "tls"}
    own.certificate.unlink()
    assert (await auth.credentials(), auth.principal) == (b"", None)


async def test_no_authentication() -> None:
    assert (NO_AUTH.method, await NO_AUTH.credentials(), await NO_AUTH.headers()) == ("none", b"", {})
    assert (NO_AUTH.principal, NO_AUTH.expires_at) == (None, None)
