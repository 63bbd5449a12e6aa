"""What locks a RocketMQ cluster: TLS on every port of it, users with keys, and the rights that they have.

Version 5.3.3 keeps users and rights in the broker (access control 2.0); they are made by requests of its first user. Version
4.9.7 reads them from conf/plain_acl.yml (access control 1.0), and again whenever that file changes. Name servers know TLS only.
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
from tests.kit.rocketmq_remoting import Door
from tests.kit.rocketmq_settings import CLUSTER, OLD_VERSION

_AUTH = "org.apache.rocketmq.auth"
PLAIN_ACL = "conf/plain_acl.yml"


@dataclass(frozen=True)
class Rights:
    """What a user may do to topics and groups with these names; `*` is all of them, `name*` those that begin so (2.0 only).

    Actions are those of access control 2.0. Version 1.0 has publishing and subscribing only, all groups alike, and
    `administers`.
    """

    topics: dict[str, Sequence[str]]
    groups: dict[str, Sequence[str]]
    cluster: Sequence[str] = ()
    administers: bool = False


@dataclass(frozen=True)
class User:
    """Access control 1.0 takes names and keys of more than six characters only."""

    name: str
    secret: str
    rights: Rights | None = None
    """None is all."""


NOTHING = Rights({}, {})
PRODUCES = Rights({"*": ["Pub"]}, {})
"""What writing to topics takes."""
CONSUMES = Rights({"*": ["Sub", "Get"]}, {"*": ["Sub", "Get"]})
"""What reading topics as a member of a group takes."""
APPLICATION = Rights({"*": ["Pub", "Sub", "Get"]}, {"*": ["Sub", "Get"]})
"""What a gateway takes that reads and writes."""
OPERATOR = Rights({"*": ["Pub", "Sub", "Get", "Create", "Update"]}, {"*": ["Sub", "Get", "Update"]}, administers=True)
"""What all commands take, those that create topics and move groups too."""

ADMIN = User("administrator", "secret-of-administrator")
APP = User("application", "secret-of-application", APPLICATION)
OPERATES = User("operator", "secret-of-operator", OPERATOR)
PUBLISHER = User("publisher", "secret-of-publisher", PRODUCES)
SUBSCRIBER = User("subscriber", "secret-of-subscriber", CONSUMES)
STRANGER = User("stranger", "secret-of-stranger", NOTHING)
USERS = (APP, OPERATES, PUBLISHER, SUBSCRIBER, STRANGER)


class Lock:
    """Certificates and users of one cluster. `client` is a certificate for clients, which the servers demand."""

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
        """For name servers, brokers and Java clients alike; a server sees its own certificate change, and reads it again."""
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

    def door(self, user: User = ADMIN) -> Door:
        """How this user gets in."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(self.client.certificate, self.client.key)
        return Door(context, user.name, self.users[user.name].secret)

    def settings(self, user: User) -> dict[str, Any]:
        """The gateway's settings with which this user gets in."""
        tls = {"authorities": self.authority.certificate, "certificate": self.client.certificate, "key": self.client.key}
        return {"tls": tls, "auth": {"access_key": user.name, "secret_key": self.users[user.name].secret}}

    # --- users and rights -------------------------------------------------------------------------------------------

    def broker_settings(self) -> dict[str, object]:
        """For broker.conf."""
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
        """Create or replace this user, with these keys and permissions."""
        self.users[user.name] = user
        if self.version == OLD_VERSION:
            _replace(home / PLAIN_ACL, self._plain_acl())
            return
        body = {"username": user.name, "password": user.secret, "userType": "Super" if user.rights is None else "Normal"}
        told = remoting.AUTH_UPDATE_USER if self._exists(user, broker) else remoting.AUTH_CREATE_USER
        self._tell(broker, told, {"username": user.name}, {**body, "userStatus": "enable"})
        if self._granted.get((broker, user.name)) == user.rights:  # else it had none for a moment
            return
        self._granted[broker, user.name] = user.rights
        subject = f"User:{user.name}"
        remoting.request(broker, remoting.AUTH_DELETE_ACL, {"subject": subject}, door=self.door())  # refused when there is none
        if entries := _entries(user.rights):
            policies = [{"policyType": "Custom", "entries": entries}]
            self._tell(broker, remoting.AUTH_CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": policies})

    def _exists(self, user: User, broker: str) -> bool:
        answer = remoting.request(broker, remoting.AUTH_GET_USER, {"username": user.name}, door=self.door())
        return answer.status == remoting.SUCCESS and user.name.encode() in answer.body

    def _tell(self, broker: str, code: int, fields: dict[str, object], body: dict[str, object]) -> None:
        remoting.call(broker, code, fields, json.dumps(body).encode(), door=self.door())

    def _plain_acl(self) -> str:
        """JSON is YAML. No address is trusted without a signature."""
        accounts = [_account(user) for user in self.users.values()]
        return json.dumps({"globalWhiteRemoteAddresses": [], "accounts": accounts}, indent=1)


def _entries(rights: Rights | None) -> list[dict[str, object]]:
    """Policies of access control 2.0."""
    if rights is None:
        return []
    named = [(f"Topic:{name}", actions) for name, actions in rights.topics.items()]
    named += [(f"Group:{name}", actions) for name, actions in rights.groups.items()]
    named += [(f"Cluster:{CLUSTER}", rights.cluster)] if rights.cluster else []
    return [{"resource": resource, "actions": list(actions), "decision": "Allow"} for resource, actions in named]


def _account(user: User) -> dict[str, object]:
    """An account of access control 1.0. An administrator with no rights named has all."""
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
    """At one stroke: the server may read it at any moment."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)
