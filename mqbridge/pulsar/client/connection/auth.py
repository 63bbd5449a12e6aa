"""Authentication methods: each has a name, and reads its current credentials when they are needed.

Credentials are read for every connection, for every call of the REST interface, and when a broker requests fresh ones. So a
replaced credentials file takes effect without a restart. Error and log texts name the source of credentials, never the secret.
"""

import asyncio
import base64
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mqbridge.net.secret import Secret

METHOD_HEADER = "X-Pulsar-Auth-Method-Name"
"""HTTP header with the method's name, for web services that accept several methods. Brokers get the name in CONNECT."""


class Auth:
    """Base class of all authentication methods, including those of plugins. The base class sends no credentials."""

    method = "none"
    """Name of the method at brokers."""

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - subclasses use it
        """Return the current credentials for CONNECT. Raises ClusterError.

        `fresh` is True if the broker has refused the last credentials, or if they have expired: then do not return cached ones.
        """
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:  # noqa: ARG002 - subclasses use it
        """Return the current HTTP headers for the REST interface; `fresh` as in `credentials`. Raises ClusterError."""
        return {}

    @property
    def principal(self) -> str | None:
        """The role that brokers give this client; None if unknown."""
        return None

    @property
    def expires_at(self) -> float | None:
        """Expiry time, in seconds since the epoch, of the credentials that were read last; None if unknown or never."""
        return None

    @property
    def description(self) -> str:
        """Description of the credentials and their source for error messages; never contains the secret."""
        return "a connection without credentials"

    @property
    def remedy(self) -> str:
        """What the user can do about refused credentials: the end of the error message."""
        return "configure `auth` for this cluster"

    async def close(self) -> None:
        """Release the resources of the method, such as connections."""


NO_AUTH = Auth()
"""Method for clusters without authentication."""


class Claims(NamedTuple):
    """Claims of a JSON Web Token (JWT). The brokers verify tokens; they are only read here."""

    subject: str | None = None
    """Role of the client, unless the brokers read the role from another claim; None if the token has no subject."""
    expires_at: float | None = None
    """Expiry time in seconds since the epoch; None if the token has none."""


def claims_of(token: str) -> Claims:
    """Return the claims of a token; empty claims if it is another kind of token."""
    parts = token.split(".")
    if len(parts) != 3:
        return Claims()
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return Claims()
    if not isinstance(claims, dict):
        return Claims()
    subject, expires_at = claims.get("sub"), claims.get("exp")
    if not isinstance(expires_at, (int, float)) or isinstance(expires_at, bool):
        expires_at = None
    return Claims(subject if isinstance(subject, str) else None, expires_at)


class TokenAuth(Auth):
    """A token that brokers verify with a key: usually a JWT, with the role as its subject."""

    method = "token"

    def __init__(self, token: Secret) -> None:
        self._secret = token
        self._claims = Claims()
        self._last_token = ""
        """The token whose claims are in `_claims`."""

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """Return the token."""
        return (await self._read(fresh)).encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the token as an HTTP bearer token."""
        return {"Authorization": f"Bearer {await self._read(fresh)}", METHOD_HEADER: self.method}

    async def _read(self, fresh: bool) -> str:
        token = await self._secret.read(fresh=fresh)
        if token != self._last_token:
            self._last_token, self._claims = token, claims_of(token)
        return token

    @property
    def principal(self) -> str | None:
        """Subject of the token that was read last."""
        return self._claims.subject

    @property
    def expires_at(self) -> float | None:
        """Expiry time of the token that was read last."""
        return self._claims.expires_at

    @property
    def description(self) -> str:
        """The token's source and, if known, its role."""
        return f"a token from {self._secret.source}" + (f" (role {self.principal!r})" if self.principal else "")

    @property
    def remedy(self) -> str:
        """Remedy for an expired token, or for a token of another cluster; "there" is the token's source in `description`."""
        if self.expires_at is not None and self.expires_at <= time.time():
            return f"it expired at {_format_utc(self.expires_at)}: put a new token there"
        return "it must be signed with the key that the brokers verify tokens with (tokenSecretKey or tokenPublicKey)"


class BasicAuth(Auth):
    """A user name and a password, sent in clear text unless the connection uses TLS."""

    method = "basic"

    def __init__(self, user: str, password: Secret) -> None:
        self._user, self._password = user, password

    async def credentials(self, *, fresh: bool = False) -> bytes:
        """Return `user:password`."""
        return f"{self._user}:{await self._password.read(fresh=fresh)}".encode()

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return the user and password as HTTP basic authentication."""
        text = base64.b64encode(await self.credentials(fresh=fresh)).decode()
        return {"Authorization": f"Basic {text}", METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The user."""
        return self._user

    @property
    def description(self) -> str:
        """The user and the password's source."""
        return f"user {self._user!r} with a password from {self._password.source}"

    @property
    def remedy(self) -> str:
        """Remedy for a wrong user or password."""
        return "the brokers' user file (basicAuthConf) must contain this user with this password"


class TlsAuth(Auth):
    """The client certificate of the TLS connection; its common name is the role."""

    method = "tls"

    def __init__(self, certificate: Path) -> None:
        self._certificate = certificate
        self._common_name: str | None = None

    async def credentials(self, *, fresh: bool = False) -> bytes:  # noqa: ARG002 - TLS reads the newest certificate
        """Return no bytes, because the broker gets the certificate from the TLS connection; update `principal` from the file."""
        self._common_name = await asyncio.to_thread(_read_common_name, self._certificate)
        return b""

    async def headers(self, *, fresh: bool = False) -> dict[str, str]:
        """Return only the method's name."""
        await self.credentials(fresh=fresh)
        return {METHOD_HEADER: self.method}

    @property
    def principal(self) -> str | None:
        """The certificate's common name."""
        return self._common_name

    @property
    def description(self) -> str:
        """The certificate's file and, if known, its common name."""
        return f"the client certificate {self._certificate}" + (f" (role {self._common_name!r})" if self._common_name else "")

    @property
    def remedy(self) -> str:
        """Remedy for a broker that accepts the TLS connection but refuses the role."""
        return "the brokers need AuthenticationProviderTls, and the certificate's authority in their tlsTrustCertsFilePath"


def _format_utc(seconds: float) -> str:
    """Format a time, in seconds since the epoch, as UTC text for messages."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _read_common_name(certificate: Path) -> str | None:
    """Return the certificate's common name, which brokers take as the role; None if the file cannot be read now."""
    from cryptography import x509  # noqa: PLC0415 - takes 7 MB of memory, and is needed only with a client certificate
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    try:
        subject = x509.load_pem_x509_certificates(certificate.read_bytes())[0].subject
    except (OSError, ValueError):
        return None
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else None
