"""Authentication methods. A method has a name and returns its current credentials on request.

Credentials are read at every connection, at every call of the REST interface, and when a broker requests fresh ones, so a
replaced file is used from then on. Texts for people name the source of credentials, never the secret.
"""

import asyncio
import base64
import time
from datetime import UTC, datetime
from pathlib import Path

from mqbridge.pulsar.client.jwt import Claims, claims_of
from mqbridge.secret import Secret

METHOD_HEADER = "X-Pulsar-Auth-Method-Name"
"""HTTP header with the method's name, for web services with several methods; brokers get it in CONNECT."""


class Auth:
    """Base class of authentication methods, also of plugins."""

    method = "none"
    """Name of the method at brokers."""

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - by those that have a source
        """Return the current credentials for CONNECT; `fresh` ones if the last ones were refused or have expired.

        Raises ClusterError.
        """
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:  # noqa: ARG002 - by those that have a source
        """Return the current headers for the REST interface. Raises ClusterError."""
        return {}

    @property
    def principal(self) -> str | None:
        """Our role in the cluster; None if unknown."""
        return None

    @property
    def ends(self) -> float | None:
        """Expiry time of the credentials that were read last, s since the epoch; None if never or unknown."""
        return None

    @property
    def shown(self) -> str:
        """Description of the credentials and their source, for people; never the secret."""
        return "no credentials"

    @property
    def advice(self) -> str:
        """Remedy for a refusal."""
        return "the cluster demands some: give them as `auth` of the cluster"

    async def close(self) -> None:
        """Release resources."""


NO_AUTH = Auth()
"""For clusters without authentication."""


class TokenAuth(Auth):
    """A token that brokers verify with a key: usually a JWT, whose subject is the role."""

    method = "token"

    def __init__(self, token: Secret) -> None:
        self._secret = token
        self._claims = Claims()
        self._seen = ""

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """Return the token."""
        return (await self._read(fresh)).encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the token as bearer authorization."""
        return {"Authorization": f"Bearer {await self._read(fresh)}", METHOD_HEADER: self.method}

    async def _read(self, fresh: bool) -> str:
        token = await self._secret.read(fresh=fresh)
        if token != self._seen:
            self._seen, self._claims = token, claims_of(token)
        return token

    @property
    def principal(self) -> str | None:
        """Subject of the token that was read last."""
        return self._claims.subject

    @property
    def ends(self) -> float | None:
        """Expiry time of the token that was read last."""
        return self._claims.ends

    @property
    def shown(self) -> str:
        """The token's source, with its role if known."""
        return f"a token from {self._secret.source}" + (f" (role {self.principal!r})" if self.principal else "")

    @property
    def advice(self) -> str:
        """Remedy for an expired token, or one of another cluster."""
        if self.ends is not None and self.ends <= time.time():
            return f"it expired at {utc(self.ends)}: put a new one there"
        return "it must be signed by the key that the brokers verify by (tokenSecretKey or tokenPublicKey)"


class BasicAuth(Auth):
    """A user with a password, which is sent in clear text."""

    method = "basic"

    def __init__(self, user: str, password: Secret) -> None:
        self._user, self._password = user, password

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """Return `user:password`."""
        return f"{self._user}:{await self._password.read(fresh=fresh)}".encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return HTTP basic authentication."""
        text = base64.b64encode(await self.credentials(fresh=fresh)).decode()
        return {"Authorization": f"Basic {text}", METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The user."""
        return self._user

    @property
    def shown(self) -> str:
        """The user and the password's source."""
        return f"user {self._user!r} with a password from {self._password.source}"

    @property
    def advice(self) -> str:
        """Remedy for a wrong user or password."""
        return "the brokers' file of users (basicAuthConf) must hold this user with this password"


class TlsAuth(Auth):
    """The client certificate of the TLS connection; its common name is the role."""

    method = "tls"

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate
        self._name: str | None = None

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - connections have the newest one
        """Return no bytes: the broker has the certificate of the connection."""
        self._name = await asyncio.to_thread(_common_name, self._certificate)
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return only the method's name."""
        await self.credentials(fresh=fresh)
        return {METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The certificate's common name."""
        return self._name

    @property
    def shown(self) -> str:
        """The certificate's file and name."""
        return f"the client certificate {self._certificate}" + (f" (role {self._name!r})" if self._name else "")

    @property
    def advice(self) -> str:
        """Remedy for a broker that accepts the connection but not the role."""
        return "the brokers need AuthenticationProviderTls, and its authority in their tlsTrustCertsFilePath"


def utc(seconds: float) -> str:
    """Format a time for people."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _common_name(certificate: Path) -> str | None:
    """Return the common name as the broker reads it; None if the file cannot be read now."""
    from cryptography import x509  # noqa: PLC0415 - 7 MB, and only for certificates of our own
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    try:
        subject = x509.load_pem_x509_certificates(certificate.read_bytes())[0].subject
    except (OSError, ValueError):
        return None
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None
