"""A real TubeMQ cluster that requires client certificates, credentials and, at its Broker, the Master's visit token.

TLS of the published servers works only as mutual TLS; `identity` is the client certificate. The servers also keep their ports
without TLS open. The Broker itself connects to the Master without TLS, because it has no setting for TLS.

The published Master requires credentials but only checks their time; here it also verifies the signature (`QuickMaster`). The
published Broker requires a token. With `authorize`, only listed groups may consume a topic.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.authority import STORE_PASSWORD, Authority
from tests.kit.guard import guard
from tests.kit.process import HOST
from tests.kit.tubemq import POOL, TubeMQ
from tests.kit.tubemq_settings import Locks

USER, PASSWORD = "bridge", "open-sesame"
VISITOR, VISITOR_PASSWORD = "broker", "made-for-the-broker"
"""Credentials of the Broker at the Master."""
TOKEN_PERIOD_MS, TOKEN_GRACE_MS = 180_000, 60_000
"""The minimum that the servers accept. Tokens change every 144 s; the Broker checks them from 60 s after its registration on."""


class LockedTubeMQ(TubeMQ):
    """A locked `TubeMQ`. `masters` has the port with TLS, `open_masters` the port without TLS.

    `users` is a file with a user and a password per line. With `authenticates=False` the cluster only has TLS, and official
    clients can use the ports without TLS.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        pool: Mapping[int, int] = POOL,
        authenticates: bool = True,
        **settings: Any,
    ) -> None:
        self._authenticates = authenticates
        self.secrets = Path(tempfile.mkdtemp(prefix="mqbridge-locked-"))
        guard().folder(self.secrets)
        self.authority = Authority(self.secrets)
        self.server = self.authority.issue("server")
        self.identity = self.authority.issue("client")
        self.users = self.secrets / "users"
        self.set_users({USER: PASSWORD})
        of_both = (_master(), _broker()) if authenticates else ("", "")
        locks = Locks(*of_both, tls=_tls(self.authority, self.server.store))
        super().__init__(topics, pool=pool, locks=locks, users=self.users, **settings)

    @property
    def masters(self) -> str:
        """Address of the Master's port with TLS."""
        return f"{HOST}:{self._settings.master_tls}"

    @property
    def open_masters(self) -> str:
        """Address of the Master's port without TLS."""
        return f"{HOST}:{self._settings.master}"

    @property
    def broker_tls_port(self) -> int:
        """The Broker's port with TLS."""
        return self._settings.broker_tls

    @property
    def keys(self) -> dict[str, Any]:
        """Options `tls` and `auth` of clients: the client certificate, and the user."""
        identity = self.identity
        files = {"authorities": self.authority.certificate, "certificate": identity.certificate, "key": identity.key}
        tls = {"tls": {name: str(path) for name, path in files.items()}}
        return tls | ({"auth": {"user": USER, "password": PASSWORD}} if self._authenticates else {})

    def set_users(self, passwords: Mapping[str, str]) -> None:
        """Set the users that the Master accepts, with their passwords."""
        new = self.users.with_suffix(".new")
        new.write_text("".join(f"{user} {password}\n" for user, password in passwords.items()))
        new.replace(self.users)

    def authorize(self, topic: str, *groups: str) -> None:
        """Permit only these groups to consume the topic, from now on."""
        self.admin("admin_set_topic_authorize_control", topicName=topic, isEnable="true", createUser="tests")
        for group in groups:
            self.admin("admin_add_authorized_consumergroup_info", topicName=topic, groupName=group, createUser="tests")

    def stop(self) -> None:
        """Stop both servers and remove all files."""
        super().stop()
        shutil.rmtree(self.secrets, ignore_errors=True)

    def kill(self) -> None:
        """Kill both servers and remove all files."""
        super().kill()
        shutil.rmtree(self.secrets, ignore_errors=True)


def checking_tokens(**settings: Any) -> TubeMQ:
    """Return a cluster without TLS and users whose Broker requires visit tokens, which official clients support."""
    checked = f"startVisitTokenCheck=true\nvisitTokenValidPeriodMs={TOKEN_PERIOD_MS}"
    return TubeMQ(locks=Locks(master=checked, broker=f"visitTokenCheckInValidTimeMs={TOKEN_GRACE_MS}", tls=""), **settings)


def _tls(authority: Authority, store: Path) -> str:
    return f"""tlsKeyStorePath={store}
tlsKeyStorePassword={STORE_PASSWORD}
tlsTwoWayAuthEnable=true
tlsTrustStorePath={authority.trust_store}
tlsTrustStorePassword={STORE_PASSWORD}"""


def _master() -> str:
    return f"""startProduceAuthenticate=true
startConsumeAuthenticate=true
startVisitTokenCheck=true
visitTokenValidPeriodMs={TOKEN_PERIOD_MS}
needBrokerVisitAuth=true
visitName={VISITOR}
visitPassword={VISITOR_PASSWORD}"""


def _broker() -> str:
    return f"""visitMasterAuth=true
visitName={VISITOR}
visitPassword={VISITOR_PASSWORD}
visitTokenCheckInValidTimeMs={TOKEN_GRACE_MS}"""
