"""A real Pulsar standalone server with TLS, authentication and authorization.

Ports without TLS are closed. The server accepts tokens, client certificates and passwords. The role of a client is the `sub` of
the token, the common name of the certificate, or the user name. The roles are:

admin       super user, used by this module
gateway     administrator of the tenant TENANT, without other permissions
app         may produce and consume in NAMESPACE
producer    may only produce in NAMESPACE
consumer    may only consume in NAMESPACE
nobody      is authenticated, but has no permissions
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.kit.authority import Authority, Identity
from tests.kit.process import HOST, LESS_COMPILING, ClusterError, accepts, free_ports
from tests.kit.pulsar import DEFAULT_NAMESPACE, Pulsar
from tests.kit.web import CALL_TIMEOUT_S

TENANT = "locked"
NAMESPACE = f"{TENANT}/orders"
ADMIN, GATEWAY, APP, PRODUCER, CONSUMER, NOBODY = "admin", "gateway", "app", "producer", "consumer", "nobody"
RIGHTS = {APP: ["produce", "consume"], PRODUCER: ["produce"], CONSUMER: ["consume"]}
ROLES = (ADMIN, GATEWAY, *RIGHTS, NOBODY)
PASSWORD = "open sesame"
HASHED = "$apr1$mqbridge$GVsp8soImO5ScAXElBwpB."
"""Hash of PASSWORD, by `openssl passwd -apr1`."""
CHECK_S = 1
"""Interval at which the broker checks for expired tokens and changed certificates."""
PACKAGE = "org.apache.pulsar.broker.authentication"
PROVIDERS = ",".join(f"{PACKAGE}.AuthenticationProvider{name}" for name in ("Token", "Tls", "Basic"))


class LockedPulsar(Pulsar):
    """A locked `Pulsar`. Its admin calls use TLS and the role `admin`. `authority` signs the certificates."""

    def __init__(
        self, settings: dict[str, object] | None = None, *, heap_mb: int = 512, java_options: Sequence[str] = LESS_COMPILING
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._tls_port, self._tls_web_port = free_ports(2)
        super().__init__(self._locked() | (settings or {}), heap_mb=heap_mb, java_options=java_options)
        self.authority = Authority(self.folder / "tls")
        self.server_identity = self.authority.issue("server")
        self._context = ssl.create_default_context(cafile=self.authority.certificate)

    def _locked(self) -> dict[str, object]:
        """Return the settings. Paths are relative to the working directory of the server, its folder."""
        users = "".join(f"{role}:{HASHED}\n" for role in ROLES)
        return {
            "brokerServicePort": "",
            "webServicePort": "",
            "brokerServicePortTls": self._tls_port,
            "webServicePortTls": self._tls_web_port,
            "tlsCertificateFilePath": "tls/server.pem",
            "tlsKeyFilePath": "tls/server.key",
            "tlsTrustCertsFilePath": "tls/authority.pem",
            "tlsCertRefreshCheckDurationSec": CHECK_S,
            "authenticationEnabled": "true",
            "authenticationProviders": PROVIDERS,
            "authenticationRefreshCheckSeconds": CHECK_S,
            "tokenSecretKey": _data(self._secret),
            "basicAuthConf": _data(users.encode()),
            "authorizationEnabled": "true",
            "superUserRoles": ADMIN,
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": "tls/authority.pem",
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{self.token(ADMIN)}",
        }

    # --- credentials ------------------------------------------------------------------------------------------------

    def token(self, role: str, ends_in_s: float | None = None, *, key: bytes | None = None) -> str:
        """Return a token for a role. It expires after `ends_in_s`, or never. With another `key` its signature is invalid."""
        claims: dict[str, object] = {"sub": role}
        if ends_in_s is not None:
            claims["exp"] = int(time.time() + ends_in_s)
        signed = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        return f"{signed}.{_base64(hmac.digest(key or self._secret, signed.encode(), hashlib.sha256))}"

    def certificate(self, role: str, **settings: Any) -> Identity:
        """Create a client certificate for a role; see `Authority.issue`."""
        return self.authority.issue(role, **settings)

    # --- the server -------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """Service URL for clients."""
        return f"pulsar+ssl://{HOST}:{self._tls_port}"

    @property
    def admin_url(self) -> str:
        """Base of the admin REST API."""
        return f"https://{HOST}:{self._tls_web_port}"

    @property
    def tls(self) -> dict[str, object]:
        """Option `tls` of the gateway's cluster settings."""
        return {"authorities": str(self.authority.certificate)}

    def config(self, auth: Any, **more: object) -> dict[str, object]:
        """Return cluster settings of the gateway, with NAMESPACE as the default namespace."""
        urls = {"service_url": self.service_url, "admin_url": self.admin_url, "namespace": NAMESPACE}
        return urls | {"tls": self.tls, "auth": auth} | more

    def config_of(self, role: str, method: str = "token", **more: object) -> dict[str, object]:
        """Return cluster settings of the gateway for a role and a method: token, tls or basic."""
        if method == "tls":
            own = self.certificate(role, file=f"{role}-client")
            tls = self.tls | {"certificate": str(own.certificate), "key": str(own.key)}
            return self.config({"method": "tls"}, tls=tls, **more)
        if method == "basic":
            return self.config({"user": role, "password": PASSWORD}, **more)
        return self.config({"token": self.token(role)}, **more)

    def start(self) -> None:
        """Start the server, and create the tenant, the namespace and its permissions."""
        super().start()
        if TENANT not in self.admin("GET", "tenants"):
            self.admin("PUT", f"tenants/{TENANT}", {"allowedClusters": ["standalone"], "adminRoles": [GATEWAY]})
            self.admin("PUT", f"namespaces/{NAMESPACE}")
            for role, rights in RIGHTS.items():
                self.admin("POST", f"namespaces/{NAMESPACE}/permissions/{role}", rights)

    def create_topic(self, name: str, partitions: int = 0, *, namespace: str = NAMESPACE) -> str:
        """Create a topic in NAMESPACE; return its full name."""
        return super().create_topic(name, partitions, namespace=namespace)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self._ask(method, path, body)
        if status >= 300:
            raise ClusterError(f"Pulsar answered {method} {path} with HTTP {status}: {text[:500]}")
        return json.loads(text) if text else None

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.token(ADMIN)}"}
        try:
            with httpx.Client(verify=self._context, headers=headers, timeout=CALL_TIMEOUT_S, trust_env=False) as http:
                response = http.request(method, f"{self.admin_url}{path}", json=body)
        except httpx.TimeoutException as error:
            raise TimeoutError(f"{method} {path}") from error
        except httpx.TransportError as error:
            raise OSError(f"{method} {path}: {error}") from error
        return response.status_code, response.text

    def _ready(self) -> bool:
        if not accepts(self._tls_web_port):
            return False
        healthy = self._ask("GET", "/admin/v2/brokers/health") == (200, "ok")
        return healthy and DEFAULT_NAMESPACE in self._ask("GET", "/admin/v2/namespaces/public")[1]


def exchange(new: Identity, old: Identity) -> None:
    """Replace the files of a certificate and its key, each file atomically."""
    for source, target in ((new.certificate, old.certificate), (new.key, old.key)):
        source.replace(target)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file: readers see either the old or the new text."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _data(raw: bytes) -> str:
    """Return a data URL, which the server's settings accept instead of the path of a file."""
    return f"data:;base64,{base64.b64encode(raw).decode()}"


def _base64(part: dict[str, object] | bytes) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
