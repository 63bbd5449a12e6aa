"""A real TubeMQ cluster that lets nobody in without a certificate, credentials and, at its Broker, the Master's token.

TLS is that of the published servers, which works in two-way mode only: `identity` is the client's certificate. The servers keep
their ports without TLS open beside those with it. The Broker itself speaks to the Master without TLS: it has no setting for more.

The published Master demands credentials and looks only at their time; here it verifies the signature too (`QuickMaster`). The
published Broker demands that a token is there. A topic may be closed to all groups but those that are listed: `authorize`.
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
"""What the Broker itself is let in with."""
TOKEN_PERIOD_MS, TOKEN_GRACE_MS = 180_000, 60_000
"""The least that the servers take: tokens change every 144 s, and the Broker checks them from 60 s after it registered."""


class LockedTubeMQ(TubeMQ):
    """`masters` are the ports with TLS, `open_masters` those without. `users` is a file of lines of user and password.

    With `authenticates=False` it has TLS and nothing else, and official clients may use the ports without.
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
        """The Master's port with TLS."""
        return f"{HOST}:{self._settings.master_tls}"

    @property
    def open_masters(self) -> str:
        """The Master's port without."""
        return f"{HOST}:{self._settings.master}"

    @property
    def broker_tls_port(self) -> int:
        """The Broker's port with TLS."""
        return self._settings.broker_tls

    @property
    def keys(self) -> dict[str, Any]:
        """The certificate that servers ask for, and the user."""
        identity = self.identity
        files = {"authorities": self.authority.certificate, "certificate": identity.certificate, "key": identity.key}
        tls = {"tls": {name: str(path) for name, path in files.items()}}
        return tls | ({"auth": {"user": USER, "password": PASSWORD}} if self._authenticates else {})

    def set_users(self, passwords: Mapping[str, str]) -> None:
        """Whom the Master knows from now on."""
        fresh = self.users.with_suffix(".new")
        fresh.write_text("".join(f"{user} {password}\n" for user, password in passwords.items()))
        fresh.replace(self.users)

    def authorize(self, topic: str, *groups: str) -> None:
        """From now on only these groups may consume the topic."""
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
    """A cluster that is open but for its Broker, which takes the Master's visit tokens only: as far as official clients can."""
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
