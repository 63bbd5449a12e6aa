"""The consumer as its broker sees it: subscribes, over any number of connections, takes what is delivered, and grants credit.

What it is and where it is in the topic is in `consumer_state.py`, how entries come in is in `intake.py`; here are the commands
around them.

Entries wait in an inbox that is bounded by bytes: credit is granted accordingly (see `credit.py`), and if messages suddenly
become much larger the consumer subscribes anew rather than hold what it cannot.

To have an ordered subscription deliver again, the consumer subscribes anew. REDELIVER without ids does not do: brokers let
entries that they were reading already follow under the new epoch, so that the order breaks and an acknowledgement covers a hole.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused
from mqbridge.net.connectivity import level_of
from mqbridge.pulsar.client.acknowledger import Acknowledger
from mqbridge.pulsar.client.attachment import Attachment
from mqbridge.pulsar.client.connection import Connection
from mqbridge.pulsar.client.consumer_requests import ConsumerRequests
from mqbridge.pulsar.client.consumer_state import ConsumerState, State
from mqbridge.pulsar.client.credit import CreditPool
from mqbridge.pulsar.client.inbox import Inbox
from mqbridge.pulsar.client.intake import EntryIntake
from mqbridge.pulsar.client.lookup import REQUEST_TIMEOUT_S, Lookup, retrying
from mqbridge.pulsar.client.rights import consuming
from mqbridge.pulsar.client.runs import Run
from mqbridge.pulsar.client.silence import SilenceWatch
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.wire import codes, commands, ids
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import DOMAINS, parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)


class ConsumerHandler:
    """What `Consumer` is built on. Made inside a running loop."""

    def __init__(
        self,
        lookup: Lookup,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        *,
        pool: CreditPool | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.sessions = 0
        """How often it has subscribed."""
        self.at_end = False
        """The topic was terminated and everything in it has been delivered."""
        self.ended: ClusterError | None = None
        """Why nothing more will come."""
        self.closed = False
        self.on_change: Callable[[], None] | None = None
        """Called whenever `receive` or `wait_active` has something to look at."""
        self._id = consumer_id
        self._request_timeout_s = request_timeout_s
        name = parse_topic(topic)
        self._state = state = ConsumerState(
            tracks=subscription.ordered and name.domain == DOMAINS[0],
            failover=subscription.type == Types.Failover,
            start=subscription.reader_from,
        )
        self._cursor: EntryId | None = None
        """What the broker said of its cursor while this consumer subscribed."""
        self._reads = subscription.reader_from is not None
        pool = pool or CreditPool(subscription.max_bytes)
        self._inbox = Inbox(state, not self._reads, pool, subscription.chunk_limits)
        self._changed = asyncio.Event()
        self._attachment = Attachment(
            lookup, self, "consumer", topic, consumer_id, lambda at: at.consumers, commands.close_consumer, request_timeout_s
        )
        self._acks = Acknowledger(
            consumer_id, topic, subscription, state, self._inbox, self._connection, self.redeliver, request_timeout_s
        )
        self._intake = EntryIntake(
            state, self._inbox, self._acks, name.partition_index, subscription.chunk_limits.expiry_s, self._connection, self.wake
        )
        self._requests = ConsumerRequests(consumer_id, topic, self._live_connection, request_timeout_s)
        self._unsubscribing = False
        self.term = 0
        """How many times a failover subscription has made this consumer passive."""
        self._silence = SilenceWatch(topic, subscription.silence_s, self._listens, self._beyond, self._subscribe_anew)

    @property
    def active(self) -> bool:
        """Whether this is the one that a failover subscription delivers to."""
        return self._state.role is State.ACTIVE

    @property
    def run(self) -> int:
        """Changes when entries that were handed out will come again: whoever holds some of an older run has nothing to say."""
        return self._state.run

    @property
    def held_bytes(self) -> int:
        """Bytes of the entries that wait or are lent, and of chunks that wait for the rest of their message."""
        return self._inbox.credit.held + self._inbox.chunks.held_bytes

    def wake(self) -> None:
        """Let those who wait look again."""
        self._changed.set()
        if self.on_change is not None:
            self.on_change()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _grant(self) -> None:
        connection = self._attachment.connection
        if connection is not None and connection.alive:
            permits = self._inbox.credit.grant()
            if permits:
                connection.endpoint.send(commands.flow(self._id, permits))

    # --- what the broker says ---------------------------------------------------------------------------------------

    def on_run(self, run: Run) -> None:
        """Entries."""
        self._received(self._intake.add_run(run))

    def _received(self, has_more: bool) -> None:
        """Entries came; whether the inbox has more than before."""
        self._silence.heard = True
        if not has_more:
            self._grant()
            return
        self.wake()
        if self._inbox.credit.overflowed and len(self._inbox) > 1:
            self._shed()

    def on_push(self, frame: Frame) -> None:
        """An entry, a change of the active consumer, or the end of the registration."""
        match frame.type:
            case BaseCommand.MESSAGE:
                self._received(self._intake.add(frame))
            case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                self._on_active(frame.command.active_consumer_change.is_active)
            case BaseCommand.REACHED_END_OF_TOPIC:
                log.info("%s was terminated and is read to its end", self.topic)
                self.at_end = True
                self.wake()
            case BaseCommand.TOPIC_MIGRATED:
                if self._attachment.on_migrated(frame.command.topicMigrated):
                    self._state.migrated()
                    self._forget()
            case _:
                log.info("%s: the broker closed the consumer, looking for its next owner", self.topic)
                self._attachment.on_closed(frame.command.close_consumer)
                self._leave(closed=True)
                if self._state.place is not State.SEEKING and not self._unsubscribing:  # else it comes first what that is for
                    self._reopen()

    def on_lost(self, error: Exception) -> None:
        """The connection is gone."""
        log.log(level_of(error, logging.INFO), "%s: the consumer lost its connection (%s), reconnecting", self.topic, error)
        self._leave()
        self._reopen()

    def _shed(self) -> None:
        """Give everything that waits back to the broker, and begin again with the credit for what fits."""
        log.warning("%s: %d bytes wait, which is more than is allowed: subscribing anew", self.topic, self.held_bytes)
        self._inbox.shed()
        self._subscribe_anew()

    def _on_active(self, active: bool) -> None:
        """A broker keeps the credit of a consumer that waits; what was dropped must be granted again, or it never delivers."""
        self._silence.heard = active
        if active:
            self._state.activated()
        else:
            self._acks.flush()  # of what was handed out while it was ours; later ones might undo what the next one decides
            self._state.deactivated()
            self.term += 1
            self._forget()
        self._grant()
        self.wake()

    # --- again, and what is left ------------------------------------------------------------------------------------

    def redeliver(self, entries: Sequence[EntryId] = ()) -> None:
        """Have these entries delivered again; on exclusive and failover subscriptions all that are not acknowledged."""
        self._acks.flush()
        if not self.subscription.ordered:
            self._acks.send_redeliver(entries)
            return
        self._subscribe_anew(self._rewind)

    def _rewind(self) -> None:
        """All that is not acknowledged comes again."""
        self._state.rewound()
        self._inbox.rewind()
        self._acks.rewound()

    async def _beyond(self) -> EntryId | None:
        """The topic's last entry, if that was not taken (or acknowledged before)."""
        answer = await retrying(self._requests.last, self._request_timeout_s)
        last = ids.entry_id(answer.last_message_id)
        known = max(self._state.handed, self._state.skipped, self._state.acked)
        if answer.HasField("consumer_mark_delete_position"):
            known = max(known, ids.entry_id(answer.consumer_mark_delete_position))
        return last if last > known and last[1] >= 0 else None

    def _listens(self) -> bool:
        """Whether all that is not received yet should be on its way."""
        connection, inbox = self._connection(), self._inbox
        live = connection is not None and connection.alive and self._state.takes_entries
        return live and not inbox and not inbox.chunks and inbox.credit.outstanding > 0

    # --- subscribing ------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Subscribe for the first time. Raises ClusterError."""
        await retrying(self._attachment.attach, timeout)
        if self.subscription.ordered:
            self._silence.begin()

    def _subscribe_anew(self, change: Callable[[], None] | None = None) -> None:
        """Leave, change the positions, and subscribe. The broker is told first, so that nothing old comes in between."""
        self._attachment.close_first()
        self._leave()
        if change is not None:
            change()
        self._reopen()

    def _leave(self, *, closed: bool = False) -> None:
        self._attachment.leave()
        run = self._state.run
        skips = self._state.left(self._inbox.first_open(self._state.handed), closed=closed)
        if run == self._state.run:
            self._inbox.drop()
        else:
            self._inbox.rewind()
        self._acks.session_ended(skips=skips)

    def _forget(self) -> None:
        """The positions have lost their meaning: so has what waits and what is not acknowledged yet."""
        self._inbox.forget()
        self._acks.forget()

    def _reopen(self) -> None:
        if self.sessions:
            self._attachment.reopen()

    async def register(self, connection: Connection) -> None:
        """SUBSCRIBE, and ask where the cursor is if that decides what comes next; no entry comes before credit is granted."""
        self._inbox.credit.reset()
        start = self._state.subscribing()
        command = self.subscription.command(self.topic, self._id, start, self._state.epoch)
        with consuming(self.topic, self.subscription.name, connection.principal):
            await connection.request(
                lambda request_id: commands.subscribe(request_id, command),
                BaseCommand.SUCCESS,
                f"SUBSCRIBE {self.subscription.name} to {self.topic}",
                self._request_timeout_s,
            )
        asks = self._state.asks_cursor
        self._cursor = await self._requests.cursor(connection, not self._reads) if asks else None
        if self._state.link is not State.SUBSCRIBING:
            # Redelivery, for instance, was asked for meanwhile: what this SUBSCRIBE named as start and epoch is of the past.
            raise RequestTimeout(f"the consumer of {self.topic} is to subscribe anew before it has subscribed")

    def begin(self, connection: Connection) -> None:  # noqa: ARG002 - every role gets it
        """Repeat the acknowledgement that may be lost and ask for messages."""
        self.sessions += 1
        if self._state.subscribed(self._cursor):
            log.warning("%s: %s was set back to %s, reading on from there", self.topic, self.subscription.name, self._cursor)
            self._forget()
        self._acks.flush()
        self._grant()
        self.wake()

    def gives_up(self, error: ClusterError, delay: float) -> bool:  # noqa: ARG002 - every role gets it
        """Our consumer of an old connection may occupy the subscription, or its keys, while the broker believes in it."""
        failure = codes.of(error.code).subscribing if isinstance(error, ServerRefused) else error.failure
        return failure in (Failure.FATAL, Failure.REFUSED)

    def _live_connection(self) -> Connection:
        if self.ended is not None:
            raise self.ended
        connection = self._connection()
        if connection is None:
            raise ConnectionLost(f"the consumer of {self.topic} is not connected just now")
        return connection

    def _connection(self) -> Connection | None:
        return self._attachment.connection

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def resumed(self) -> int:
        """How often it was found that the broker had stopped delivering, see `silence`."""
        return self._silence.resumed

    def end(self, error: ClusterError) -> None:
        """Nothing more will come, for this reason."""
        self.ended = error
        self._silence.end()
        self._attachment.ended = True
        self._leave()
        self._inbox.credit.close()
        self._state.ended()
        self.wake()

    async def close(self, deadline: float | None = None) -> None:
        """Send the acknowledgements and close, by this loop time; what is not acknowledged will be delivered again."""
        if self.closed:
            return
        self.closed = True
        self._acks.flush()
        await self._silence.stop()
        await self._attachment.stop_trying()
        connection = self._attachment.connection
        self.end(ClusterError(f"the consumer of {self.topic} is closed", Failure.FATAL))
        self._acks.stop()
        self._intake.stop()
        await self._attachment.close(connection, deadline)
