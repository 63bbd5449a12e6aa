"""How a connection says who it is. A method gives its name and, whenever asked, its current credentials.

Credentials are asked for at every connection, at every call of the REST interface, and when a broker wants fresh ones: what is
exchanged in a file is used from then on. What is shown to people names where they come from, never what they are.
"""

import asyncio
import base64
import time
from datetime import UTC, datetime
from pathlib import Path

from mqbridge.pulsar.client.jwt import Claims, claims_of
from mqbridge.secret import Secret

METHOD_HEADER = "X-Pulsar-Auth-Method-Name"
"""By which a web service that knows several methods chooses, as CONNECT says it to a broker."""


class Auth:
    """An authentication method: the base of those here, and of those that plugins bring."""

    method = "none"
    """The name that brokers know it by."""

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - by those that have a source
        """What CONNECT carries now. It is to be `fresh` where the last one was refused, or a broker says that it has expired.

        Raises ClusterError.
        """
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:  # noqa: ARG002 - by those that have a source
        """What calls of the REST interface carry now. Raises ClusterError."""
        return {}

    @property
    def principal(self) -> str | None:
        """Who we are to the cluster, as far as it can be known here; None where not."""
        return None

    @property
    def ends(self) -> float | None:
        """When the credentials that were read last expire, s since the epoch; None when never, or not known."""
        return None

    @property
    def shown(self) -> str:
        """What it shows to brokers and where that comes from, for people; never the secret."""
        return "no credentials"

    @property
    def advice(self) -> str:
        """What mends a refusal."""
        return "the cluster demands some: give them as `auth` of the cluster"

    async def close(self) -> None:
        """Let go of what it holds."""


NO_AUTH = Auth()
"""For clusters that let everybody in."""


class TokenAuth(Auth):
    """A token, which brokers verify by a key: usually a JWT, whose subject is the role."""

    method = "token"

    def __init__(self, token: Secret) -> None:
        self._secret = token
        self._claims = Claims()
        self._seen = ""

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """The text of the token."""
        return (await self._read(fresh)).encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """As a bearer's."""
        return {"Authorization": f"Bearer {await self._read(fresh)}", METHOD_HEADER: self.method}

    async def _read(self, fresh: bool) -> str:
        token = await self._secret.read(fresh=fresh)
        if token != self._seen:
            self._seen, self._claims = token, claims_of(token)
        return token

    @property
    def principal(self) -> str | None:
        """The subject of the token that was read last."""
        return self._claims.subject

    @property
    def ends(self) -> float | None:
        """When the token that was read last expires."""
        return self._claims.ends

    @property
    def shown(self) -> str:
        """With its role, where it says one."""
        return f"a token from {self._secret.source}" + (f" (role {self.principal!r})" if self.principal else "")

    @property
    def advice(self) -> str:
        """Expired, or not of this cluster."""
        if self.ends is not None and self.ends <= time.time():
            return f"it expired at {utc(self.ends)}: put a new one there"
        return "it must be signed by the key that the brokers verify by (tokenSecretKey or tokenPublicKey)"


class BasicAuth(Auth):
    """A user with a password, which goes over the wire as it is."""

    method = "basic"

    def __init__(self, user: str, password: Secret) -> None:
        self._user, self._password = user, password

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """`user:password`."""
        return f"{self._user}:{await self._password.read(fresh=fresh)}".encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """As HTTP has it."""
        text = base64.b64encode(await self.credentials(fresh=fresh)).decode()
        return {"Authorization": f"Basic {text}", METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The user."""
        return self._user

    @property
    def shown(self) -> str:
        """With the user."""
        return f"user {self._user!r} with a password from {self._password.source}"

    @property
    def advice(self) -> str:
        """Either is wrong."""
        return "the brokers' file of users (basicAuthConf) must hold this user with this password"


class TlsAuth(Auth):
    """The client certificate that the connection was made with; its common name is the role."""

    method = "tls"

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate
        self._name: str | None = None

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - connections have the newest one
        """Nothing: the broker has seen the certificate."""
        self._name = await asyncio.to_thread(_common_name, self._certificate)
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Nothing but the method."""
        await self.credentials(fresh=fresh)
        return {METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The certificate's common name."""
        return self._name

    @property
    def shown(self) -> str:
        """With its name."""
        return f"the client certificate {self._certificate}" + (f" (role {self._name!r})" if self._name else "")

    @property
    def advice(self) -> str:
        """The broker took the connection, and not who is at its end."""
        return "the brokers need AuthenticationProviderTls, and its authority in their tlsTrustCertsFilePath"


def utc(seconds: float) -> str:
    """A time as people read it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _common_name(certificate: Path) -> str | None:
    """As the broker reads it; None when the file cannot be read just now."""
    from cryptography import x509  # noqa: PLC0415 - 7 MB, and only for certificates of our own
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    try:
        subject = x509.load_pem_x509_certificates(certificate.read_bytes())[0].subject
    except (OSError, ValueError):
        return None
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None
