"""Writes certificates and credentials of locked clusters into a folder, as `mqbridge example locked` expects."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.authority import Authority, Identity
from tests.kit.pulsar import Pulsar
from tests.kit.pulsar_locked import GATEWAY, LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import ADMIN, User
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_locked import PASSWORD, LockedTubeMQ


def mount(folder: Path, cluster: TubeMQ | Pulsar | RocketMQ, user: User = ADMIN, role: str = GATEWAY) -> None:
    """Write the files for a cluster, for this `user` of RocketMQ or `role` of Pulsar. Write nothing if it is not locked."""
    match cluster:
        case LockedPulsar():
            _write(folder / "pulsar", cluster.authority, None, {"token": cluster.token(role)})
        case LockedTubeMQ():
            _write(folder / "tubemq", cluster.authority, cluster.identity, {"password": PASSWORD})
        case RocketMQ(lock=lock) if lock is not None:
            keys = {"access-key": user.name, "secret-key": lock.users[user.name].secret}
            _write(folder / "rocketmq", lock.authority, lock.client, keys)


def _write(folder: Path, authority: Authority, client: Identity | None, texts: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(authority.certificate, folder / "authorities.pem")
    if client is not None:
        shutil.copy(client.certificate, folder / "client.pem")
        shutil.copy(client.key, folder / "client.key")
    for name, text in texts.items():
        (folder / name).write_text(text)
