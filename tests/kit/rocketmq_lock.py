"""Security of a locked RocketMQ cluster: TLS on every port, and users with access keys and permissions.

Version 5.3.3 stores users and permissions in the broker (access control 2.0); the first user, ADMIN, creates the others. Version
4.9.7 reads them from conf/plain_acl.yml (access control 1.0) whenever that file changes. Name servers support TLS only.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit import rocketmq_remoting as remoting
from tests.kit.authority import Authority, Identity
from tests.kit.rocketmq_remoting import Credentials
from tests.kit.rocketmq_settings import CLUSTER, OLD_VERSION

_AUTH = "org.apache.rocketmq.auth"
PLAIN_ACL = "conf/plain_acl.yml"


@dataclass(frozen=True)
class Rights:
    """Permitted actions of a user by topic or group name. `*` matches all names, `name*` a prefix (2.0 only).

    Actions are those of access control 2.0. Version 1.0 only distinguishes publishing and subscribing, and administrators
    (`administers`).
    """

    topics: dict[str, Sequence[str]]
    groups: dict[str, Sequence[str]]
    cluster: Sequence[str] = ()
    administers: bool = False


@dataclass(frozen=True)
class User:
    """A user. Access control 1.0 requires that the name and the secret have more than six characters."""

    name: str
    secret: str
    rights: Rights | None = None
    """None means all rights."""


NOTHING = Rights({}, {})
PRODUCES = Rights({"*": ["Pub"]}, {})
"""Rights needed to write to topics."""
CONSUMES = Rights({"*": ["Sub", "Get"]}, {"*": ["Sub", "Get"]})
"""Rights needed to read topics as a member of a group."""
APPLICATION = Rights({"*": ["Pub", "Sub", "Get"]}, {"*": ["Sub", "Get"]})
"""Rights needed by a gateway that reads and writes."""
OPERATOR = Rights(
    {"*": ["Pub", "Sub", "Get", "Create", "Update", "Delete"]}, {"*": ["Sub", "Get", "Update", "Delete"]}, administers=True
)
"""Rights needed by all commands and listeners, including those that create and delete topics, and move and delete groups."""

ADMIN = User("administrator", "secret-of-administrator")
APP = User("application", "secret-of-application", APPLICATION)
OPERATES = User("operator", "secret-of-operator", OPERATOR)
PUBLISHER = User("publisher", "secret-of-publisher", PRODUCES)
SUBSCRIBER = User("subscriber", "secret-of-subscriber", CONSUMES)
STRANGER = User("stranger", "secret-of-stranger", NOTHING)
USERS = (APP, OPERATES, PUBLISHER, SUBSCRIBER, STRANGER)


class Lock:
    """Certificates and users of one cluster. `client` is the client certificate that the servers require."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self.authority = Authority(folder)
        self.server: Identity = self.authority.issue("server")
        self.client: Identity = self.authority.issue("client")
        self._granted: dict[tuple[str, str], Rights | None] = {}
        """Users that access control 2.0 knows, by broker and name."""
        self.users = {user.name: user for user in (ADMIN, *USERS)}

    # --- TLS --------------------------------------------------------------------------------------------------------

    @property
    def java_options(self) -> list[str]:
        """TLS options of name servers, brokers and Java clients. Servers reload their certificate when its file changes."""
        named = {
            "tls.server.mode": "enforcing",
            "tls.test.mode.enable": "false",
            "tls.server.certPath": self.server.certificate,
            "tls.server.keyPath": self.server.key,
            "tls.server.trustCertPath": self.authority.certificate,
            "tls.server.authClient": "true",
            "tls.server.need.client.auth": "require",
            # Brokers are clients of name servers, and of each other.
            "tls.enable": "true",
            "tls.client.certPath": self.client.certificate,
            "tls.client.keyPath": self.client.key,
            "tls.client.trustCertPath": self.authority.certificate,
            "tls.client.authServer": "true",
            "tls.config.file": "none",
        }
        return [f"-D{name}={value}" for name, value in named.items()]

    def credentials(self, user: User = ADMIN) -> Credentials:
        """Return the credentials of a user."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(self.client.certificate, self.client.key)
        return Credentials(context, user.name, self.users[user.name].secret)

    def settings(self, user: User) -> dict[str, Any]:
        """Return the gateway's cluster settings for a user."""
        tls = {"authorities": self.authority.certificate, "certificate": self.client.certificate, "key": self.client.key}
        return {"tls": tls, "auth": {"access_key": user.name, "secret_key": self.users[user.name].secret}}

    # --- users and rights -------------------------------------------------------------------------------------------

    def broker_settings(self) -> dict[str, object]:
        """Return the settings for broker.conf."""
        if self.version == OLD_VERSION:
            return {"aclEnable": "true"}
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": ADMIN.name, "password": ADMIN.secret}),
            "innerClientAuthenticationCredentials": json.dumps({"accessKey": ADMIN.name, "secretKey": ADMIN.secret}),
            "authorizationEnabled": "true",
            "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
        }

    def prepare(self, home: Path) -> None:
        """Write the files that a broker reads at its start."""
        if self.version == OLD_VERSION:
            _replace(home / PLAIN_ACL, self._plain_acl())

    def open_for(self, user: User, broker: str, home: Path) -> None:
        """Create or replace a user of one broker, with its keys and permissions."""
        self.users[user.name] = user
        if self.version == OLD_VERSION:
            _replace(home / PLAIN_ACL, self._plain_acl())
            return
        body = {"username": user.name, "password": user.secret, "userType": "Super" if user.rights is None else "Normal"}
        code = remoting.AUTH_UPDATE_USER if self._exists(user, broker) else remoting.AUTH_CREATE_USER
        self._call(broker, code, {"username": user.name}, {**body, "userStatus": "enable"})
        if (
            self._granted.get((broker, user.name)) == user.rights
        ):  # replacing them would leave the user without rights for a moment
            return
        self._granted[broker, user.name] = user.rights
        subject = f"User:{user.name}"
        remoting.request(
            broker, remoting.AUTH_DELETE_ACL, {"subject": subject}, credentials=self.credentials()
        )  # rejected if there is none
        if entries := _entries(user.rights):
            policies = [{"policyType": "Custom", "entries": entries}]
            self._call(broker, remoting.AUTH_CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": policies})

    def _exists(self, user: User, broker: str) -> bool:
        answer = remoting.request(broker, remoting.AUTH_GET_USER, {"username": user.name}, credentials=self.credentials())
        return answer.status == remoting.SUCCESS and user.name.encode() in answer.body

    def _call(self, broker: str, code: int, fields: dict[str, object], body: dict[str, object]) -> None:
        remoting.call(broker, code, fields, json.dumps(body).encode(), credentials=self.credentials())

    def _plain_acl(self) -> str:
        """Return the YAML file as JSON, which is valid YAML. No address may send unsigned requests."""
        accounts = [_account(user) for user in self.users.values()]
        return json.dumps({"globalWhiteRemoteAddresses": [], "accounts": accounts}, indent=1)


def _entries(rights: Rights | None) -> list[dict[str, object]]:
    """Return the policy entries of access control 2.0."""
    if rights is None:
        return []
    named = [(f"Topic:{name}", actions) for name, actions in rights.topics.items()]
    named += [(f"Group:{name}", actions) for name, actions in rights.groups.items()]
    named += [(f"Cluster:{CLUSTER}", rights.cluster)] if rights.cluster else []
    return [{"resource": resource, "actions": list(actions), "decision": "Allow"} for resource, actions in named]


def _account(user: User) -> dict[str, object]:
    """Return an account of access control 1.0. An administrator without named rights has all rights."""
    account: dict[str, object] = {"accessKey": user.name, "secretKey": user.secret, "whiteRemoteAddress": "", "admin": True}
    if user.rights is None:
        return account
    topics = {name: _old_right(actions) for name, actions in user.rights.topics.items()}
    groups = {name: _old_right(actions) for name, actions in user.rights.groups.items()}
    return {
        **account,
        "admin": user.rights.administers,
        "defaultTopicPerm": topics.pop("*", "DENY"),
        "defaultGroupPerm": groups.pop("*", "DENY"),
        "topicPerms": [f"{name}={right}" for name, right in topics.items()],
        "groupPerms": [f"{name}={right}" for name, right in groups.items()],
    }


def _old_right(actions: Sequence[str]) -> str:
    return "|".join(action.upper() for action in actions if action in ("Pub", "Sub")) or "DENY"


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, because the server may read it at any time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)
