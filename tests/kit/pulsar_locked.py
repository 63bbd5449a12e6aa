"""A real Pulsar standalone that requires TLS and credentials, and permits only what was granted.

The plain ports are closed. One server authenticates by token, by client certificate and by password; a role is the token's `sub`,
the certificate's common name, or the user. Roles and their rights:

admin       super user, the kit's own
gateway     administrator of the tenant TENANT, and nothing beyond it
app         may produce and consume in NAMESPACE
producer    may only produce there
consumer    may only consume there
nobody      is known, and may do nothing
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import time
from pathlib import Path
from typing import Any

import httpx

from tests.kit.authority import Authority, Identity
from tests.kit.process import HOST, ClusterError, accepts, free_ports
from tests.kit.pulsar import DEFAULT_NAMESPACE, Pulsar
from tests.kit.web import CALL_TIMEOUT_S

TENANT = "locked"
NAMESPACE = f"{TENANT}/orders"
ADMIN, GATEWAY, APP, PRODUCER, CONSUMER, NOBODY = "admin", "gateway", "app", "producer", "consumer", "nobody"
RIGHTS = {APP: ["produce", "consume"], PRODUCER: ["produce"], CONSUMER: ["consume"]}
ROLES = (ADMIN, GATEWAY, *RIGHTS, NOBODY)
PASSWORD = "open sesame"
HASHED = "$apr1$mqbridge$GVsp8soImO5ScAXElBwpB."
"""PASSWORD as `openssl passwd -apr1` has it."""
CHECK_S = 1
"""How often the broker looks for tokens that have expired, and for changed certificates."""
PACKAGE = "org.apache.pulsar.broker.authentication"
PROVIDERS = ",".join(f"{PACKAGE}.AuthenticationProvider{name}" for name in ("Token", "Tls", "Basic"))


class LockedPulsar(Pulsar):
    """As `Pulsar`, whose calls here are made over TLS as `admin`. `authority` signs for servers and clients."""

    def __init__(self, settings: dict[str, object] | None = None, *, heap_mb: int = 512) -> None:
        self._secret = secrets.token_bytes(32)
        self._tls_port, self._tls_web_port = free_ports(2)
        super().__init__(self._locked() | (settings or {}), heap_mb=heap_mb)
        self.authority = Authority(self.folder / "tls")
        self.server_identity = self.authority.issue("server")
        self._context = ssl.create_default_context(cafile=self.authority.certificate)

    def _locked(self) -> dict[str, object]:
        """Paths are relative to the server's folder, where it runs."""
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
        """A token of this role, without an end or with one; signed by another key it is not of this cluster."""
        claims: dict[str, object] = {"sub": role}
        if ends_in_s is not None:
            claims["exp"] = int(time.time() + ends_in_s)
        signed = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        return f"{signed}.{_base64(hmac.digest(key or self._secret, signed.encode(), hashlib.sha256))}"

    def certificate(self, role: str, **settings: Any) -> Identity:
        """A client certificate of this role; see `Authority.issue`."""
        return self.authority.issue(role, **settings)

    # --- the server -------------------------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """What clients connect to."""
        return f"pulsar+ssl://{HOST}:{self._tls_port}"

    @property
    def admin_url(self) -> str:
        """Base of the admin REST API."""
        return f"https://{HOST}:{self._tls_web_port}"

    @property
    def tls(self) -> dict[str, object]:
        """The `tls` of a cluster's configuration."""
        return {"authorities": str(self.authority.certificate)}

    def config(self, auth: Any, **more: object) -> dict[str, object]:
        """A cluster's configuration, in the namespace where roles have rights."""
        urls = {"service_url": self.service_url, "admin_url": self.admin_url, "namespace": NAMESPACE}
        return urls | {"tls": self.tls, "auth": auth} | more

    def config_of(self, role: str, method: str = "token", **more: object) -> dict[str, object]:
        """Return the settings of a client that authenticates as this role by this method."""
        if method == "tls":
            own = self.certificate(role, file=f"{role}-client")
            tls = self.tls | {"certificate": str(own.certificate), "key": str(own.key)}
            return self.config({"method": "tls"}, tls=tls, **more)
        if method == "basic":
            return self.config({"user": role, "password": PASSWORD}, **more)
        return self.config({"token": self.token(role)}, **more)

    def start(self) -> None:
        """Start the server, and make the tenant with its rights."""
        super().start()
        if TENANT not in self.admin("GET", "tenants"):
            self.admin("PUT", f"tenants/{TENANT}", {"allowedClusters": ["standalone"], "adminRoles": [GATEWAY]})
            self.admin("PUT", f"namespaces/{NAMESPACE}")
            for role, rights in RIGHTS.items():
                self.admin("POST", f"namespaces/{NAMESPACE}/permissions/{role}", rights)

    def create_topic(self, name: str, partitions: int = 0, *, namespace: str = NAMESPACE) -> str:
        """Create a topic where roles have rights; its full name."""
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
                answer = http.request(method, f"{self.admin_url}{path}", json=body)
        except httpx.TimeoutException as error:
            raise TimeoutError(f"{method} {path}") from error
        except httpx.TransportError as error:
            raise OSError(f"{method} {path}: {error}") from error
        return answer.status_code, answer.text

    def _ready(self) -> bool:
        if not accepts(self._tls_web_port):
            return False
        healthy = self._ask("GET", "/admin/v2/brokers/health") == (200, "ok")
        return healthy and DEFAULT_NAMESPACE in self._ask("GET", "/admin/v2/namespaces/public")[1]


def exchange(new: Identity, old: Identity) -> None:
    """Put one certificate and its key where another one is, each file at once."""
    for source, target in ((new.certificate, old.certificate), (new.key, old.key)):
        source.replace(target)


def write_atomically(path: Path, text: str) -> None:
    """As a secret's owner exchanges it: readers see the old text or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _data(raw: bytes) -> str:
    """A value that the server's settings hold themselves, instead of a file."""
    return f"data:;base64,{base64.b64encode(raw).decode()}"


def _base64(part: dict[str, object] | bytes) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
