"""One TubeMQ cluster, for programs: producers, consumers and administration that share Masters and connections.

    async with TubeMQClient("10.0.0.1:8715,10.0.0.2:8715") as client:
        sender = await client.sender("orders")
        await sender.send("1:0", b"data")

Everything that was opened here is closed here, in order.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.dial import split_address
from mqbridge.net.tls.tls import Tls
from mqbridge.secret import Secret
from mqbridge.tubemq.client.admin import Admin
from mqbridge.tubemq.client.balanced import BalancedConsumer
from mqbridge.tubemq.client.consumer import Consumer
from mqbridge.tubemq.client.credentials import as_credentials
from mqbridge.tubemq.client.master import Masters, default_port
from mqbridge.tubemq.client.producer import CLOSE_TIMEOUT_S, Producer, Sender
from mqbridge.tubemq.client.reading import Puller
from mqbridge.tubemq.client.routes import HEARTBEAT_S, Routes
from mqbridge.tubemq.client.session import REQUEST_TIMEOUT_S
from mqbridge.tubemq.client.sessions import IDLE_S, Sessions
from mqbridge.tubemq.client.spread import Spread, open_spread


class TubeMQClient:
    """`masters` is `host:port`, several separated by commas or as a list; the port may be left out.

    `shared_connections=False` gives every partition a connection of its own. `idle_s` is after how long an unused connection is
    closed, `heartbeat_s` how often Masters and Brokers hear of us: partitions are handed out in the answers.
    `user` and `password` are for clusters that authenticate clients.
    """

    def __init__(
        self,
        masters: str | Sequence[str],
        *,
        admin_url: str | None = None,
        admin_token: Secret | str | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        idle_s: float = IDLE_S,
        shared_connections: bool = True,
        tls: Tls | None = None,
        user: str | None = None,
        password: Secret | str | None = None,
    ) -> None:
        texts = masters.split(",") if isinstance(masters, str) else masters
        self._addresses = [split_address(text.strip(), default_port(is_encrypted=tls is not None)) for text in texts]
        self._admin_url, self._admin_token, self._tls = admin_url, admin_token, tls
        self._credentials = as_credentials(user, password)
        self._heartbeat_s = heartbeat_s
        self._settings: dict[str, Any] = {
            "timeout_s": request_timeout_s,
            "idle_s": idle_s,
            "shared": shared_connections,
            "tls": tls,
        }
        self._stack = AsyncExitStack()
        self._masters: Masters | None = None
        self._routes: Routes | None = None

    async def __aenter__(self) -> Self:
        name = ",".join(f"{host}:{port}" for host, port in self._addresses)
        sessions = Sessions(**self._settings, connectivity=Connectivity(name, self._addresses))
        self._stack.push_async_callback(sessions.close)
        self._masters = Masters(self._addresses, sessions, self._credentials)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close everything that was opened, the last first."""
        self._masters = self._routes = None
        await self._stack.aclose()

    @property
    def masters(self) -> Masters:
        """The cluster's Masters; `masters.sessions.snapshot()` has the counters of all connections."""
        if self._masters is None:
            raise ClusterError("this client is not open: use it as `async with TubeMQClient(...) as client`", Failure.FATAL)
        return self._masters

    # --- producing --------------------------------------------------------------------------------------------------

    async def sender(self, topic: str, **settings: Any) -> Sender:
        """A way into named partitions, in order; settings and errors are those of `Producer.sender`."""
        sender = await (await self._producer()).sender(topic, **settings)
        self._stack.push_async_callback(sender.close)
        return sender

    async def spread(self, topic: str, *, max_elapsed_s: float | None = None) -> Spread:
        """A way into whichever partition takes a message."""
        spread = await open_spread(await self._producer(), topic, max_elapsed_s=max_elapsed_s)
        self._stack.push_async_callback(spread.close, CLOSE_TIMEOUT_S)
        return spread

    async def _producer(self) -> Producer:
        if self._routes is None:
            routes = Routes(self.masters, heartbeat_s=self._heartbeat_s)
            await routes.start()
            self._stack.push_async_callback(routes.close)
            self._routes = routes
        return Producer(self._routes, self.masters.sessions)

    # --- consuming --------------------------------------------------------------------------------------------------

    async def consumer(self, group: str, topics: Sequence[str], **settings: Any) -> Consumer:
        """A member of a group to which the Master assigns partitions; settings and errors are those of `Consumer`."""
        consumer = Consumer(self.masters, group, topics, **{"heartbeat_s": self._heartbeat_s, **settings})
        await consumer.start()
        self._stack.push_async_callback(consumer.close)
        return consumer

    async def puller(self, group: str, topics: Sequence[str], **settings: Any) -> Puller:
        """The same, its packs pulled one after the other."""
        puller = Puller(await self.consumer(group, topics, **settings))
        self._stack.push_async_callback(puller.close)
        return puller

    async def balanced_consumer(self, group: str, topics: Sequence[str], **settings: Any) -> BalancedConsumer:
        """A member of a group that balances itself; settings and errors are those of `BalancedConsumer`."""
        consumer = BalancedConsumer(self.masters, group, topics, **{"heartbeat_s": self._heartbeat_s, **settings})
        await consumer.start()
        self._stack.push_async_callback(consumer.close)
        return consumer

    # --- administration ---------------------------------------------------------------------------------------------

    def admin(self) -> Admin:
        """The administrators' API; needs `admin_url`."""
        if self._admin_url is None:
            raise ClusterError("this client has no admin_url, the Master's web address", Failure.FATAL)
        admin = Admin(self._admin_url, self._admin_token, tls=self._tls)
        self._stack.push_async_callback(admin.close)
        return admin
