"""Names that a server could take for others, with scripted servers that decode subscription names once or twice."""

import json
from collections.abc import Awaitable, Callable
from urllib.parse import unquote, unquote_plus

import httpx
import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.pulsar.client.admin import admin as admin_module
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_http import AdminHttp
from mqbridge.pulsar.wire.names import TopicName, parse_topic

TOPIC = parse_topic("orders")


class Broker(httpx.AsyncBaseTransport):
    """The subscriptions of one topic, which a broker finds after it has decoded their names once or twice."""

    def __init__(self, subscriptions: set[str], *, decodes_twice: bool) -> None:
        self.subscriptions = subscriptions
        self.decodes_twice = decodes_twice
        self.changed: list[str] = []
        """Subscriptions that a call has moved or deleted."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0]
        if path.endswith("/subscriptions"):
            return httpx.Response(200, text=json.dumps(sorted(self.subscriptions)))
        _, _, rest = path.partition("/subscription/")
        if not rest:
            raise AssertionError(f"{request.method} {path} is about another object")
        name = unquote(rest.split("/")[0])
        name = unquote_plus(name) if self.decodes_twice else name
        if request.method == "PUT":
            self.subscriptions.add(name)
        elif name not in self.subscriptions:
            return httpx.Response(404, json={"reason": "Subscription not found"})
        else:
            self.changed.append(name)
            if request.method == "DELETE":
                self.subscriptions.remove(name)
        return httpx.Response(204)


Connect = Callable[[Broker], Admin]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Return a function that makes an admin client of this broker."""

    def make(broker: Broker) -> Admin:
        monkeypatch.setattr(admin_module, "AdminHttp", lambda url, timeout_s, **_: AdminHttp(url, timeout_s, broker))
        return Admin("http://broker:8080", 10.0)

    return make


Change = Callable[[Admin, TopicName, str], Awaitable[None]]
CHANGES: dict[str, Change] = {
    "delete": lambda admin, topic, name: admin.delete_subscription(topic, name, force=True),
    "reset to time": lambda admin, topic, name: admin.reset_to_time(topic, name, 1),
    "reset": lambda admin, topic, name: admin.reset_to(topic, name, (0, 0)),
    "skip": lambda admin, topic, name: admin.skip(topic, name, 1),
    "skip all": lambda admin, topic, name: admin.skip_all(topic, name),
    "expire": lambda admin, topic, name: admin.expire(topic, name, 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["a b", "a+b", "a/b", "a%2Fb", "50%"])
async def test_a_change_reaches_only_its_subscription(connect: Connect, change: Change, name: str) -> None:
    broker = Broker({"a b", "a+b", "a/b", "a%2Fb", "50%"}, decodes_twice=True)
    await change(connect(broker), TOPIC, name)
    assert broker.changed == [name]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["a+b", "50%", ".", "..", ""])
@pytest.mark.parametrize("decodes_twice", [False, True])
async def test_a_change_of_a_missing_subscription_changes_no_other(
    connect: Connect, change: Change, name: str, decodes_twice: bool
) -> None:
    others = {"a b", "a%2Bb", "50%25", "plain"}
    broker = Broker(set(others), decodes_twice=decodes_twice)
    with pytest.raises(ClusterError) as caught:
        await change(connect(broker), TOPIC, name)
    assert caught.value.failure is Failure.FATAL
    assert (broker.changed, broker.subscriptions) == ([], others)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("decodes_twice", [False, True])
async def test_a_change_is_refused_if_two_subscriptions_could_be_taken_for_each_other(
    connect: Connect, change: Change, decodes_twice: bool
) -> None:
    broker = Broker({"a+b", "a%2Bb"}, decodes_twice=decodes_twice)
    with pytest.raises(ClusterError, match="Nothing was changed"):
        await change(connect(broker), TOPIC, "a+b")
    assert broker.changed == []


async def test_a_subscription_that_was_created_with_another_name_is_an_error_and_is_deleted(connect: Connect) -> None:
    broker = Broker({"a b"}, decodes_twice=False)
    with pytest.raises(ClusterError, match="with another name"):
        await connect(broker).create_subscription(TOPIC, "a+b")
    assert broker.subscriptions == {"a b"}


async def test_an_existing_subscription_is_not_created_again(connect: Connect) -> None:
    with pytest.raises(ServerRefused) as caught:
        await connect(Broker({"a+b"}, decodes_twice=True)).create_subscription(TOPIC, "a+b")
    assert caught.value.code == 409


@pytest.mark.parametrize("dots", [".", ".."])
async def test_names_that_disappear_from_paths_are_refused(connect: Connect, dots: str) -> None:
    admin = connect(Broker(set(), decodes_twice=True))
    topic = TopicName("persistent", "public", "default", dots)
    for call in (admin.delete_tenant(dots), admin.delete_namespace(f"public/{dots}"), admin.delete(topic), admin.stats(topic)):
        with pytest.raises(ClusterError, match="cannot be addressed"):
            await call
