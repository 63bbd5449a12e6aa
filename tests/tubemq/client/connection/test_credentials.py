"""Credentials: signatures, the authorization in each request, and the errors for refusals."""

import time
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, RequestTimeout, ServerRefused
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.secret import Secret
from mqbridge.tubemq.client.connection.credentials import Credentials
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.membership import Membership
from mqbridge.tubemq.client.producer.routes import Routes
from mqbridge.tubemq.library.balanced_membership import BalancedMembership
from mqbridge.tubemq.wire.credentials import sign
from mqbridge.tubemq.wire.pb import master_pb2 as m
from tests.tubemq.client.fakes import Script
from tests.tubemq.client.quick import shorten_pauses

GOOD = {"success": True, "errCode": 200, "errMsg": "OK"}
NO_TIME = "Illegal value: timestamp out of effective period in authenticateToken!"


def test_a_signature_equals_that_of_the_official_client() -> None:
    signed = sign("user1", "pass1", 1700000000000, 12345)
    assert signed.signature == "ezYNMEmVJIQp3OnTX2RUSGhZcGA%3D"
    assert signed.for_broker == "user1 1700000000000 12345 ezYNMEmVJIQp3OnTX2RUSGhZcGA%3D"
    assert signed.for_master.SerializeToString().hex() == (
        "0a0575736572311080d095ffbc31"  # userName, timestamp
        "18b960"  # nonce
        "2200"  # othParams: required, and empty
        "2a1e657a594e4d456d564a495170334f6e5458325255534768"  # signature
        "5a6347412533" + "44"
    )


class OneMaster:
    """The connections of a client that has one Master."""

    def __init__(self, script: Script) -> None:
        self.script, self.connectivity, self.is_encrypted = script, Connectivity("locked"), False

    def connection_to(self, host: str, port: int, partition: str = "") -> Any:
        return self.script


def masters_of(script: Script, credentials: Credentials) -> Masters:
    return Masters([("m", 1)], OneMaster(script), credentials)  # type: ignore[arg-type]


def user(password: str | Secret = "secret") -> Credentials:
    return Credentials("app", password if isinstance(password, Secret) else Secret(password))


def authorized(visit: int, token: str | None = None) -> m.MasterAuthorizedInfo:
    return m.MasterAuthorizedInfo(visitAuthorizedToken=visit, authAuthorizedToken=token)


def is_signed_now(info: m.MasterCertificateInfo, password: str = "secret") -> bool:
    """Return whether this was signed with the password, within the last minute."""
    proof = info.authInfo
    is_now = abs(proof.timestamp - time.time() * 1000) < 60_000
    return is_now and sign("app", password, proof.timestamp, proof.nonce).for_master == proof


async def test_every_request_to_a_master_has_a_new_signature() -> None:
    script = Script(
        m.RegisterResponseM2P(**GOOD, brokerCheckSum=1, brokerInfos=["1:b:8123"]),
        m.HeartResponseM2P(**GOOD, brokerCheckSum=1, topicInfos=["t#1:1:1#100"]),
        m.CloseResponseM2P(**GOOD),
        m.RegisterResponseM2C(**GOOD),
        m.HeartResponseM2C(**GOOD),
        m.CloseResponseM2C(**GOOD),
        m.RegisterResponseM2CV2(errCode=200, errMsg="OK"),
        m.HeartResponseM2CV2(errCode=200, errMsg="OK"),
        m.GetPartMetaResponseM2C(errCode=200, errMsg="OK"),
    )
    masters = masters_of(script, user())
    routes = Routes(masters)
    routes.client_id = routes.host = "p"
    await routes._register()
    await routes.topic("t")
    await routes.close()
    member = Membership(masters, "g", ["t"], {})
    await member.register([])
    await member.heartbeat(None, None)
    await member.leave()
    balanced = BalancedMembership(masters, "g", ["t"], {})
    await balanced.register([])
    await balanced.heartbeat(None)
    await balanced.refresh_partitions()
    assert len(script.requests) == 9
    assert all(is_signed_now(request.authInfo) for request in script.requests)
    assert len({request.authInfo.authInfo.nonce for request in script.requests}) == 9


async def test_the_master_after_a_silent_one_gets_a_new_signature() -> None:
    """A Master accepts a signature for a few seconds only, which the timeout of a silent Master may use up."""
    silent, active = Script(RequestTimeout("silent")), Script(m.HeartResponseM2P(**GOOD, brokerCheckSum=1))
    connections = OneMaster(silent)
    servers = {"m": silent, "n": active}
    connections.connection_to = lambda host, *_: servers[host]  # type: ignore[method-assign]
    masters = Masters([("m", 1), ("n", 1)], connections, user())  # type: ignore[arg-type]
    routes = Routes(masters)
    routes.client_id = routes.host = "p"
    await routes._send_heartbeat([])
    (first,), (second,) = silent.requests, active.requests
    assert is_signed_now(first.authInfo)
    assert is_signed_now(second.authInfo)
    assert first.authInfo.authInfo.nonce != second.authInfo.authInfo.nonce


async def test_the_password_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    masters = masters_of(Script(), user(Secret(file=file)))
    assert is_signed_now(await masters.auth_info() or m.MasterCertificateInfo(), "first")
    file.write_text("second\n")
    assert is_signed_now(await masters.auth_info() or m.MasterCertificateInfo(), "second")
    file.unlink()
    assert is_signed_now(await masters.auth_info() or m.MasterCertificateInfo(), "second")


async def test_a_password_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"the secret from file .*none cannot be read") as failed:
        await masters_of(Script(), user(Secret(file=tmp_path / "none"))).auth_info()
    assert failed.value.failure is Failure.FATAL


async def test_requests_to_a_broker_contain_the_masters_token_or_a_signature() -> None:
    masters = masters_of(Script(), user())
    before = masters.broker_auth
    await masters.auth_info()
    masters.store_tokens(authorized(5))
    first = masters.broker_auth
    assert first is not before
    assert first.visitAuthorizedToken == 5
    name, timestamp, nonce, _ = first.authAuthorizedToken.split(" ")
    assert first.authAuthorizedToken == sign(name, "secret", int(timestamp), int(nonce)).for_broker
    await masters.auth_info()
    assert masters.broker_auth.authAuthorizedToken != first.authAuthorizedToken, "it has the newest signature"
    masters.store_tokens(authorized(6, "from-the-master"))
    assert masters.broker_auth.authAuthorizedToken == "from-the-master"
    assert (await masters.auth_info() or m.MasterCertificateInfo()).authorizedToken == "from-the-master"
    kept = masters.broker_auth
    masters.store_tokens(authorized(6))
    assert masters.broker_auth is kept, "senders compare by identity, so the object changes only with its content"


REFUSALS = [
    (Credentials(), "Server required MasterCertificateInfo!", "set auth.user and auth.password"),
    (
        user(),
        "Illegal value: userName or password is not correct!",
        "does not accept user 'app' with the password from the config",
    ),
    (user(Secret(env="PW_OF_APP")), "no", "does not accept user 'app' with the password from env PW_OF_APP: correct auth"),
    (user(), NO_TIME, "synchronize the clocks"),
]


@pytest.mark.parametrize(("credentials", "server_text", "shown"), REFUSALS, ids=["missing", "wrong", "wrong-from-env", "clock"])
async def test_refused_credentials_are_fatal_in_one_line(
    monkeypatch: pytest.MonkeyPatch, credentials: Credentials, server_text: str, shown: str
) -> None:
    monkeypatch.setenv("PW_OF_APP", "hidden-secret")
    script = Script(m.RegisterResponseM2P(success=False, errCode=415, errMsg=server_text, brokerCheckSum=-1))
    masters = masters_of(script, credentials)
    masters.local_host = _loopback  # type: ignore[method-assign]
    with pytest.raises(ServerRefused) as refused:
        await Routes(masters).start()
    text = str(refused.value)
    assert (shown in text, server_text in text, "\n" in text, "secret" in text) == (True, True, False, False)
    assert (refused.value.failure, len(script.requests)) == (Failure.FATAL, 1)
    assert not masters.connections.connectivity.credentials_accepted


async def _loopback() -> str:
    return "127.0.0.1"


async def test_a_refusal_of_credentials_is_fatal_only_before_they_were_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired password does not stop a running gateway; a producer's accepted credentials say nothing about consumers."""
    shorten_pauses(monkeypatch)
    no = {"success": False, "errCode": 415, "errMsg": "Illegal value: userName or password is not correct!"}
    script = Script(
        m.RegisterResponseM2P(**GOOD, brokerCheckSum=1),
        m.HeartResponseM2P(**no, brokerCheckSum=1),
        m.RegisterResponseM2C(**no),
    )
    masters = masters_of(script, user())
    routes = Routes(masters)
    routes.client_id = routes.host = "p"
    await routes._register()
    assert masters.connections.connectivity.credentials_accepted
    with pytest.raises(ServerRefused, match="does not accept user 'app'") as producing:
        await routes.look_up("t")
    assert producing.value.failure is Failure.RETRY
    with pytest.raises(ServerRefused, match="does not accept user 'app'") as consuming:
        await Membership(masters, "g", ["t"], {}).register([])
    assert consuming.value.failure is Failure.FATAL


async def test_a_check_with_a_unique_group_finds_refused_credentials_of_consumers() -> None:
    """The check joins with a unique group and leaves at once. Refusals of unlisted groups are ignored."""
    no = {"success": False, "errCode": 415, "errMsg": "Illegal value: userName or password is not correct!"}
    closed = {"success": False, "errCode": 450, "errMsg": "unAuthorized Group"}
    left = m.CloseResponseM2C(**GOOD)
    script = Script(m.RegisterResponseM2C(**no), left, m.RegisterResponseM2C(**closed), left, m.RegisterResponseM2C(**GOOD), left)
    routes = Routes(masters_of(script, user()))
    with pytest.raises(ServerRefused, match="does not accept user 'app'") as refused:
        await routes.check_consumer("t")
    assert refused.value.failure is Failure.FATAL
    await routes.check_consumer("t")
    await routes.check_consumer("t")
    assert len({request.groupName for request in script.requests}) == 3


async def test_a_topic_for_listed_groups_is_not_missing_while_its_brokers_are_away() -> None:
    """The Master then does not list the topic to producers, and refuses the group of the check."""
    script = Script(
        m.HeartResponseM2P(**GOOD, brokerCheckSum=1),
        m.RegisterResponseM2C(success=False, errCode=450, errMsg="unAuthorized Group"),
        m.CloseResponseM2C(**GOOD),
    )
    with pytest.raises(ClusterError, match="no Broker accepts messages for it now") as waiting:
        await Routes(masters_of(script, user())).look_up("t")
    assert waiting.value.failure is Failure.RETRY


async def test_missing_credentials_are_not_reported_as_a_missing_topic() -> None:
    """A Master may require credentials from consumers only, and the client asks as a consumer whether a topic exists."""
    script = Script(
        m.RegisterResponseM2P(**GOOD, brokerCheckSum=1),
        m.HeartResponseM2P(**GOOD, brokerCheckSum=1),
        m.RegisterResponseM2C(success=False, errCode=415, errMsg="Server required MasterCertificateInfo!"),
        m.CloseResponseM2C(**GOOD),
    )
    routes = Routes(masters_of(script, Credentials()))
    routes.client_id = routes.host = "p"
    await routes._register()
    with pytest.raises(ServerRefused, match=r"set auth\.user and auth\.password"):
        await routes.topic("t")


async def test_other_refusals_keep_their_error_code() -> None:
    answer = m.RegisterResponseM2C(success=False, errCode=425, errMsg="other topics")
    with pytest.raises(ServerRefused, match="425 CLIENT_INCONSISTENT_TOPICSET"):
        await Membership(masters_of(Script(answer), user()), "g", ["t"], {}).register([])
