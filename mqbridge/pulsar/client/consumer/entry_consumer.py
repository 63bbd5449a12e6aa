"""Consumer of one concrete topic (a partition, or an unpartitioned topic), over successive connections to its brokers.

Entries are delivered unpacked, that is decompressed; an entry that cannot be unpacked is delivered with a `defect`.

After a reconnection the broker redelivers all unacknowledged entries. On ordered subscriptions (exclusive, failover, reader) the
consumer drops entries that it has already delivered, so the application sees no duplicates during the life of the consumer. On
shared subscriptions duplicates are normal.

The consumer subscribes, and exchanges commands with the broker. Its states and positions are in `consumer_state.py`, received
frames are processed in `entry_receiver.py`, and acknowledgements in `acknowledger.py`. The receiver queue is bounded by memory,
and permits are granted accordingly (see `flow_permits.py`). If messages suddenly become much larger and the queue overflows, the
consumer drops its entries and subscribes again.

To get entries of an ordered subscription redelivered, the consumer sends a new SUBSCRIBE. The command for this purpose,
REDELIVER_UNACKNOWLEDGED_MESSAGES without ids, does not work: a broker also sends the later entries that it was already reading,
and marks them with the new epoch. So the order would break, and a cumulative acknowledgement would cover undelivered entries.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused
from mqbridge.net.connectivity import retry_log_level
from mqbridge.pulsar.client.connection.authorization import explain_subscribe_denial
from mqbridge.pulsar.client.connection.broker_registration import WARN_AFTER_S, BrokerRegistration
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.connection.entry_runs import EntryRun
from mqbridge.pulsar.client.connection.lookup import REQUEST_TIMEOUT_S, Lookup, retry
from mqbridge.pulsar.client.consumer.acknowledger import Acknowledger
from mqbridge.pulsar.client.consumer.arrival_ids import ArrivalIds
from mqbridge.pulsar.client.consumer.consumer_requests import ConsumerRequests, ConsumerStats
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState, State
from mqbridge.pulsar.client.consumer.entry_receiver import EntryReceiver
from mqbridge.pulsar.client.consumer.flow_permits import ReceiveBudget
from mqbridge.pulsar.client.consumer.receiver_queue import ReceiverQueue
from mqbridge.pulsar.client.consumer.stall_detector import StallDetector
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import PERSISTENT, parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

log = logging.getLogger(__name__)
NEGATIVE_ACK_DELAY_S = 60.0
"""Default delay between a negative acknowledgement and the redelivery, in seconds."""


class EntryConsumer:
    """A consumer that reconnects; `open` subscribes for the first time. Create it in a running loop."""

    def __init__(
        self,
        lookup: Lookup,
        consumer_id: int,
        topic: str,
        subscription: Subscription,
        *,
        budget: ReceiveBudget | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.registrations = 0
        """Number of successful SUBSCRIBE commands."""
        self.at_end = False
        """True once the broker has reported that the topic is terminated and has no more entries for the subscription."""
        self.on_change: Callable[[], None] | None = None
        """Callback for every change that may let a waiting method return, such as `receive` or `wait_active`."""
        self._id = consumer_id
        self._request_timeout_s = request_timeout_s
        name = parse_topic(topic)
        self._persistent = persistent = name.domain == PERSISTENT
        """False for a topic whose broker stores nothing: it has no positions, and delivers nothing again."""
        self._warned_of_loss = False
        self._state = state = ConsumerState(
            in_order=subscription.ordered and persistent,
            # The broker of a non-persistent topic delivers only to the active consumer, but does not tell it that it is active.
            failover=subscription.type == Types.Failover and persistent,
            start=subscription.reader_from,
        )
        self._left_connection: Connection | None = None
        """The connection over which the consumer was left to subscribe again; None once it is subscribed."""
        self._cursor: EntryId | None = None
        """The broker's cursor at the last SUBSCRIBE; None if it was not requested or is unknown."""
        self._is_reader = subscription.reader_from is not None
        budget = budget or ReceiveBudget(subscription.max_bytes)
        self._receiver_queue = ReceiverQueue(
            state,
            acknowledges=not self._is_reader,
            budget=budget,
            chunk_limits=subscription.chunk_limits,
            joins_chunks=subscription.joins_chunks,
        )
        self._changed = asyncio.Event()
        """Set by every change that may let a waiting method return."""
        self._role_changed = asyncio.Event()
        """Set only when the broker reports which consumer is active, and when the consumer ends.

        A task waits for it during the whole life of a lane, and must not be woken by every read of the connection.
        """
        self._registration = BrokerRegistration(
            lookup,
            self,
            what="consumer",
            topic=topic,
            key=consumer_id,
            table=lambda connection: connection.consumers,
            close_command=client_commands.close_consumer,
            request_timeout_s=request_timeout_s,
            is_over=lambda: state.is_over,
        )
        self._acks = Acknowledger(
            consumer_id,
            topic,
            subscription,
            state,
            self._receiver_queue,
            connection=self._connection,
            redeliver=self.redeliver,
            request_timeout_s=request_timeout_s,
            sends=persistent,
        )
        self._receiver = EntryReceiver(
            state,
            self._receiver_queue,
            self._acks,
            partition=name.partition_index,
            chunk_expiry_s=subscription.chunk_limits.expiry_s,
            connection=self._connection,
            wake=self.wake,
            arrival_ids=None if persistent else ArrivalIds(),
            keeps_packed=subscription.keeps_packed,
        )
        self._requests = ConsumerRequests(consumer_id, topic, self._live_connection, request_timeout_s)
        self.deactivations = 0
        """Number of reports that this consumer of a failover subscription is passive; each SUBSCRIBE may cause one."""
        self._stall_detector = StallDetector(
            f"{topic}, subscription {subscription.name}",
            subscription.silence_s,
            state,
            can_receive=self._can_receive,
            find_unreceived=self._find_unreceived,
            resubscribe=self._resubscribe,
        )

    @property
    def end_error(self) -> ClusterError | None:
        """The error that ended the consumer; None while it has not ended."""
        return self._state.end_error

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._state.is_closed

    @property
    def active(self) -> bool:
        """True if this is the active consumer of a failover subscription.

        Always True for other subscription types, and for non-persistent topics, where a broker does not report it.
        """
        return self._state.role is State.ACTIVE

    @property
    def is_subscribed(self) -> bool:
        """True while the consumer is subscribed over an open connection."""
        connection = self._connection()
        return connection is not None and connection.alive

    @property
    def generation(self) -> int:
        """A number that changes whenever the positions are set back or discarded, so that entries may be delivered again.

        It changes by a redelivery on an ordered subscription, a seek, a reset of the subscription, a migration of the topic, a
        broker that loses acknowledgements, and when another consumer becomes active; if entries of an ordered subscription were
        acknowledged one by one, also by the loss of the connection. Acknowledgements of entries that were delivered under an
        earlier number have no effect.
        """
        return self._state.generation

    @property
    def held_bytes(self) -> int:
        """Bytes of memory of queued entries, of taken entries that are still charged, and of chunks of incomplete messages."""
        return self._receiver_queue.permits.held + self._receiver_queue.chunks.held_bytes

    @property
    def last_chunk(self) -> EntryId:
        """The last chunk that was received over the present connection; EARLIEST if there is none."""
        return self._receiver_queue.last_chunk

    @property
    def incomplete(self) -> ChunkJoiner:
        """The chunked messages that wait for their remaining chunks; only for reading."""
        return self._receiver_queue.chunks

    @property
    def stalls(self) -> int:
        """Number of detected stalls, see `stall_detector.py`."""
        return self._stall_detector.stalls

    # --- receiving --------------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of entries in the receiver queue, which `receive` would return at once."""
        return len(self._receiver_queue)

    @property
    def last_delivered(self) -> EntryId:
        """The latest entry that was delivered; EARLIEST if there is none. A seek or a redelivery of all entries resets it.

        For a reader that began at LATEST, it is at least the broker's cursor at that time. A chunked message that expires may
        be delivered after it, with an earlier id.
        """
        return self._state.delivered

    async def receive(self) -> Entry:
        """Wait for the next entry and return it unpacked. Raises ClusterError if the consumer has ended."""
        while True:
            entry = self.take()
            if entry is not None:
                return entry
            if self.end_error is not None:
                raise self.end_error
            await self._wait_for_change()

    def take(self) -> Entry | None:
        """Return the next entry unpacked, None if the receiver queue is empty."""
        entry = self._receiver_queue.take()
        if entry is None:
            return None
        if self.subscription.ack_timeout_s is not None:
            self._acks.start_ack_timeout(entry.id)
        self._grant_permits()
        entry.unpack()
        return entry

    def take_many(self, max_bytes: int, max_memory: int, max_entries: int) -> list[Entry]:
        """Take the next entries, unpacked, until one of the three limits is reached.

        `max_bytes` limits their size as received, `max_memory` their bytes of memory when unpacked. At least one entry is
        returned unless the receiver queue is empty. The memory counts against the receive budget until `release_taken`.
        """
        entries = self._receiver_queue.take_many(max_bytes, max_memory, max_entries)
        for entry in entries:
            entry.unpack()
        if self.subscription.ack_timeout_s is not None:
            for entry in entries:
                self._acks.start_ack_timeout(entry.id)
        self._grant_permits()
        return entries

    @property
    def share(self) -> int:
        """Bytes of memory that the entries of this consumer may take: its share of the receive budget."""
        return self._receiver_queue.permits.share

    def release_taken(self) -> None:
        """Release the memory of the entries from `take_many`, because they were dropped or the caller accounts for them."""
        if self._receiver_queue.permits.deferred:
            self._receiver_queue.permits.release_deferred()
            self._grant_permits()

    def _grant_permits(self) -> None:
        """Send a FLOW if it is worthwhile now, see `FlowPermits.grant`."""
        connection = self._registration.connection
        if connection is not None and connection.alive:
            permits = self._receiver_queue.permits.grant()
            if permits:
                connection.endpoint.send(client_commands.flow(self._id, permits))

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake all waiting tasks and call `on_change`."""
        self._changed.set()
        if self.on_change is not None:
            self.on_change()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _wait_for_role_change(self) -> None:
        """Wait for the broker's next report about the active consumer. Raises ClusterError if the consumer has ended."""
        if self.end_error is not None:
            raise self.end_error
        self._role_changed.clear()
        await self._role_changed.wait()

    async def wait_active(self, active: bool) -> None:
        """Wait until this consumer of a failover subscription is active; with `active` False, until it is passive.

        Raises ClusterError if the consumer has ended.
        """
        while self.active is not active:
            await self._wait_for_role_change()

    async def wait_deactivated(self, deactivations: int) -> None:
        """Return once the consumer has become passive, even if it has become active again in the meantime.

        `deactivations` is the value of `self.deactivations` when the caller last saw the consumer active. Raises ClusterError if
        the consumer has ended.
        """
        while self.active and self.deactivations == deactivations:
            await self._wait_for_role_change()

    async def wait_available(self, timeout: float | None = None) -> None:
        """Wait as `wait_change` does, but return at once if an entry is queued or the consumer has ended.

        Without a timeout, this waits as long as nothing changes.
        """
        if not self._receiver_queue and self.end_error is None:
            await (self._wait_for_change() if timeout is None else self.wait_change(timeout))

    async def wait_change(self, timeout: float) -> None:
        """Wait for the next change, a new entry or a change of the consumer's state; at most `timeout` seconds."""
        # `call_later` needs a third of the CPU time of `asyncio.timeout`.
        timer = asyncio.get_running_loop().call_later(timeout, self._changed.set)
        try:
            await self._wait_for_change()
        finally:
            timer.cancel()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, entry: EntryId) -> None:
        """Acknowledge this entry, with all of its chunks."""
        self._acks.acknowledge(entry)

    def acknowledge_message(self, entry: EntryId, index: int, count: int) -> None:
        """Acknowledge message `index` of the batch of `count` in this entry."""
        self._acks.acknowledge_messages(entry, 1 << index, count)

    def acknowledge_messages(self, entry: EntryId, acknowledged: int, count: int) -> bool:
        """Acknowledge the messages whose bits are set in `acknowledged`, of the entry's `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        return self._acks.acknowledge_messages(entry, acknowledged, count)

    def acknowledge_up_to(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Acknowledge all earlier entries and this entry; with `index`, only messages 0 to `index` of its `count` messages.

        `index` None stands for all messages of the entry. Only for ordered subscriptions. Does nothing if the entry was not
        delivered, or will be delivered again.
        """
        self._acks.acknowledge_up_to(entry, index, count)

    def flush_acks(self) -> None:
        """Send the pending acknowledgements now; without a connection they are sent over the next one."""
        self._acks.flush()

    async def confirm_acks(self) -> None:
        """Send the pending acknowledgements and wait for their receipts.

        Raises ClusterError; the acknowledgements without a receipt will then be sent again.
        """
        await self._acks.confirm(self._live_connection())

    def negative_acknowledge(self, entry: EntryId, delay_s: float = NEGATIVE_ACK_DELAY_S) -> None:
        """Request the redelivery of this entry after `delay_s` seconds.

        On shared subscriptions the broker redelivers only this entry, and counts the redeliveries; on ordered subscriptions it
        redelivers all unacknowledged entries.
        """
        self._acks.negative_acknowledge(entry, delay_s)

    # --- commands of the broker -------------------------------------------------------------------------------------

    def on_run(self, run: EntryRun) -> None:
        """Process a run: ordinary entries that arrived in one read of the socket (see `entry_runs.py`)."""
        self._on_received(self._receiver.add_run(run))

    def _on_received(self, queue_has_grown: bool) -> None:
        """Wake waiting tasks if received entries were queued; grant permits if all of them were dropped or are chunks."""
        self._stall_detector.has_news = True
        if not queue_has_grown:
            self._grant_permits()
            if self._is_reader:  # a range may end with a chunk
                self.wake()
            return
        self.wake()
        # The only entry in the queue is kept, however large it is: otherwise it would never be delivered.
        if self._receiver_queue.permits.overflowed and len(self._receiver_queue) > 1:
            self._overflow()

    def on_push(self, frame: Frame) -> None:
        """Process a command of the broker: an entry, a change of the active consumer, a topic's end or migration, or a close."""
        match frame.type:
            case BaseCommand.MESSAGE:
                self._on_received(self._receiver.add(frame))
            case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                if self._persistent:
                    self._on_active_change(frame.command.active_consumer_change.is_active)
            case BaseCommand.REACHED_END_OF_TOPIC:
                text = "topic %s was terminated and has been read to its end by subscription %s"
                log.info(text, self.topic, self.subscription.name)
                self.at_end = True
                self.wake()
            case BaseCommand.TOPIC_MIGRATED:
                # If the new address is valid, the CLOSE_CONSUMER that follows makes the consumer connect to it.
                if self._registration.on_migrated(frame.command.topicMigrated):
                    self._state.on_migrated()
                    self._forget()
                    self._receiver_queue.chunks.forget_completed()
            case _:  # CLOSE_CONSUMER
                text = "topic %s, subscription %s: the broker closed the consumer, looking up the topic's new owner"
                log.info(text, self.topic, self.subscription.name)
                self._registration.on_closed(frame.command.close_consumer)
                self._detach(closed=True)
                if self._state.subscribes_after_close:
                    self._reopen()

    def on_lost(self, error: Exception) -> None:
        """Subscribe again after the loss of the connection."""
        log.log(
            retry_log_level(error, logging.INFO),
            "topic %s, subscription %s: the consumer lost its connection (%s), reconnecting",
            self.topic,
            self.subscription.name,
            error,
        )
        self._detach()
        self._reopen()

    def _overflow(self) -> None:
        """Drop all queued entries, and subscribe again with fewer permits; the broker of a non-persistent topic has lost them."""
        if not self._persistent:
            self._warn_of_loss(f"{len(self._receiver_queue)} queued entries exceed the receive budget and are dropped")
            self._receiver_queue.record_overflow()
            self._receiver_queue.drop()
            self._grant_permits()
            return
        log.warning(
            "topic %s, subscription %s: the receive budget is exceeded, so the consumer drops its queued entries (%d bytes) "
            "and subscribes again to receive them again",
            self.topic,
            self.subscription.name,
            self.held_bytes,
        )
        self._receiver_queue.record_overflow()
        self._resubscribe()

    def _on_active_change(self, active: bool) -> None:
        """Process a change of the active consumer of a failover subscription.

        A broker keeps the permits that a passive consumer has not used. But the permits of the entries that are dropped here are
        used up. They must be granted again, otherwise nothing is delivered when this consumer becomes active.
        """
        self._stall_detector.has_news = active  # from its activation on, a consumer has a whole interval to receive an entry
        if active:
            self._state.on_activated()
        else:
            self._acks.release_withheld()
            self._acks.flush()  # sent later, these acknowledgements could move the cursor of the next active consumer
            self._state.on_deactivated()
            self.deactivations += 1
            self._forget()
        self._grant_permits()
        self._role_changed.set()
        self.wake()

    # --- redelivery -------------------------------------------------------------------------------------------------

    def redeliver(self, entries: Sequence[EntryId] = ()) -> None:
        """Request the redelivery of these entries; on an ordered subscription, of all unacknowledged entries instead.

        The broker of a non-persistent topic cannot deliver anything again, so this only logs a warning.
        """
        if not self._persistent:
            self._acks.abandon(entries)
            self._warn_of_loss("messages that were rejected are not delivered again")
        elif self.subscription.ordered:
            self._resubscribe(self._rewind)
        else:
            self._acks.flush()
            self._acks.send_redeliver(entries)

    def _warn_of_loss(self, problem: str) -> None:
        """Log, once in the life of this consumer, that a non-persistent topic loses messages."""
        log.log(
            logging.DEBUG if self._warned_of_loss else logging.WARNING,
            "topic %s, subscription %s: the topic is not persistent, and its broker stores nothing: %s",
            self.topic,
            self.subscription.name,
            problem,
        )
        self._warned_of_loss = True

    def _rewind(self) -> None:
        """Set the positions back, so that the next SUBSCRIBE redelivers everything unacknowledged."""
        self._state.rewind()
        self._receiver_queue.rewind()
        self._acks.clear_redeliveries()

    # --- subscribing ------------------------------------------------------------------------------------------------

    async def open(self, timeout: float) -> None:
        """Subscribe for the first time, with retries for `timeout` seconds. Raises ClusterError."""
        await retry(self._registration.attach, timeout)
        # No stall checks if shared: another consumer may have received the topic's last entry. A topic that is not persistent has
        # no last entry.
        if self.subscription.ordered and self._persistent:
            self._stall_detector.schedule_check()

    def _resubscribe(self, set_positions: Callable[[], None] | None = None) -> None:
        """Send the pending acknowledgements, detach, call `set_positions`, and subscribe in the background.

        Before the new SUBSCRIBE the consumer is closed at the broker, so that no entry of the old SUBSCRIBE arrives later.
        """
        self._acks.flush()  # sent later, they could include entries after the position of a reset
        if left := self.is_subscribed:
            self._left_connection = self._connection()
        self._registration.close_before_next()
        self._detach(left=left)
        if set_positions is not None:
            set_positions()
        if self._state.intent is not State.UNSUBSCRIBING:  # a SUBSCRIBE would create the deleted subscription again
            self._reopen()

    def _detach(self, *, closed: bool = False, left: bool = False) -> None:
        """Leave the connection and drop the queued entries; see `ConsumerState.on_detached` for `closed` and `left`."""
        connection = self._registration.detach()
        if connection is not None:
            self._state.record_pongs(connection.pongs)
        generation = self._state.generation
        # `skips_delivered`: entries that the application already has are dropped when the broker delivers them again.
        skips_delivered = self._state.on_detached(
            self._receiver_queue.earliest_open_chunk(self._state.delivered), closed=closed, left=left
        )
        if not self._persistent:  # nothing is redelivered, so the queued entries are kept
            pass
        elif generation == self._state.generation:
            self._receiver_queue.drop()
        elif left:  # the state was set back: delivered entries are redelivered too
            self._receiver_queue.rewind()
        else:  # all positions were discarded
            self._forget()
        self._acks.on_disconnected(skips_delivered=skips_delivered)

    def _forget(self) -> None:
        """Drop queued entries and pending acknowledgements, because all positions are discarded."""
        self._receiver_queue.forget()
        self._acks.forget()

    def _reopen(self) -> None:
        """Subscribe in the background. Before the first successful SUBSCRIBE do nothing: `open` repeats the attempts."""
        if self.registrations:
            self._registration.reopen()

    async def register(self, connection: Connection) -> None:
        """Send SUBSCRIBE, and request the cursor if needed, for example to notice that the subscription was reset.

        No entry arrives before permits are granted.
        """
        self._receiver_queue.permits.reset()
        start = self._state.begin_subscribe(same_connection=connection is self._left_connection)
        command = self.subscription.command(self.topic, self._id, start, self._state.epoch, was_open=self.registrations > 0)
        with explain_subscribe_denial(self.topic, self.subscription.name, connection.principal):
            await connection.request(
                lambda request_id: client_commands.subscribe(request_id, command),
                BaseCommand.SUCCESS,
                f"SUBSCRIBE {self.subscription.name} to {self.topic}",
                self._request_timeout_s,
            )
        needs_cursor = self._state.needs_cursor
        self._cursor = await self._requests.cursor(connection, is_durable=not self._is_reader) if needs_cursor else None
        if self._state.link is not State.SUBSCRIBING:
            # For example, a redelivery was requested meanwhile, so start and epoch of this SUBSCRIBE are outdated. After a
            # RequestTimeout `BrokerRegistration` closes the consumer at this broker before it subscribes again.
            raise RequestTimeout(
                f"SUBSCRIBE to {self.topic} is repeated as after a timeout: its start position changed before the response"
            )

    def on_registered(self, connection: Connection) -> None:  # noqa: ARG002 - an argument of `Registrable`
        """Start to receive after a successful SUBSCRIBE: repeat an acknowledgement that may be lost, and grant permits.

        If the subscription was reset, all positions are discarded first.
        """
        self.registrations += 1
        self._left_connection = None
        if self._state.on_subscribed(self._cursor):
            if self._cursor is None:
                text = "topic %s: the broker does not report the cursor of subscription %s, unacknowledged entries are repeated"
                log.warning(text, self.topic, self.subscription.name)
            else:
                text = "topic %s: subscription %s was reset, or a broker lost acknowledgements: continuing after entry %s"
                log.warning(text, self.topic, self.subscription.name, self._cursor)
            self._forget()
        self._acks.flush()
        self._grant_permits()
        self.wake()

    def is_final(self, error: ClusterError, delay: float) -> bool:  # noqa: ARG002 - an argument of `Registrable`
        """Return True for a FATAL or REFUSED error. The broker's ConsumerBusy is neither: it may still have our old consumer."""
        failure = codes.of(error.code).subscribing if isinstance(error, ServerRefused) else error.failure
        return failure in (Failure.FATAL, Failure.REFUSED)

    @property
    def refusal(self) -> str | None:
        """Why the repeated SUBSCRIBE has failed for WARN_AFTER_S seconds or longer; None without such failures."""
        failing = self._registration.failing
        is_long = failing.failing_since is not None and asyncio.get_running_loop().time() - failing.failing_since >= WARN_AFTER_S
        return failing.reason if is_long and self.end_error is None else None

    def _live_connection(self) -> Connection:
        """Return the connection where the consumer is registered. Raises ClusterError if it has ended or is reconnecting."""
        if self.end_error is not None:
            raise self.end_error
        connection = self._connection()
        if connection is None:
            raise ConnectionLost(f"the consumer of topic {self.topic} is not connected now, but reconnecting: retry later")
        return connection

    def _connection(self) -> Connection | None:
        return self._registration.connection

    # --- positions --------------------------------------------------------------------------------------------------

    async def last_id(self) -> EntryId:
        """Return the id of the topic's newest entry, (-1, -1) if the topic is empty or not persistent. Raises ClusterError."""
        if not self._persistent:
            return (-1, -1)
        response = await retry(self._requests.last_message_id, self._request_timeout_s)
        return ids.entry_id(response.last_message_id)

    async def last_message(self) -> tuple[int, int, int]:
        """Return ledger, entry and batch index of the newest message; the index is -1 without a batch. Raises ClusterError.

        All are -1 if the topic is empty or not persistent.
        """
        if not self._persistent:
            return (-1, -1, -1)
        last = (await retry(self._requests.last_message_id, self._request_timeout_s)).last_message_id
        return (*ids.entry_id(last), last.batch_index)

    async def cursor(self) -> EntryId | None:
        """Return the last of the entries that the subscription has acknowledged without a gap. Raises ClusterError.

        A new subscription has entry -1 of the ledger in which it begins. None if the broker does not report the cursor, and for a
        topic that is not persistent.
        """
        if not self._persistent:
            return None
        response = await retry(self._requests.last_message_id, self._request_timeout_s)
        has_cursor = response.HasField("consumer_mark_delete_position")
        cursor = ids.entry_id(response.consumer_mark_delete_position) if has_cursor else ids.EARLIEST
        return cursor if cursor > ids.EARLIEST else None

    async def has_more(self) -> bool:
        """Return True if entries are queued, or if the topic has entries after the last one received or acknowledged.

        An incomplete chunked message counts, too: it will be delivered, also if its last chunk never comes. Raises ClusterError.
        """
        receiver_queue = self._receiver_queue
        if receiver_queue or receiver_queue.chunks:
            return True
        # An entry that arrives during the request is not received, even if a later one was skipped meanwhile.
        return await self.has_unreceived() or bool(receiver_queue or receiver_queue.chunks)

    async def has_unreceived(self) -> bool:
        """Return True if the topic has entries after the last one received or acknowledged. Raises ClusterError."""
        return await self._find_unreceived() is not None

    async def _find_unreceived(self) -> EntryId | None:
        """Return the topic's last entry; None if it was received, skipped or acknowledged, or if the topic has none.

        A non-persistent topic has none: what was not received is lost. Raises ClusterError while this consumer reconnects.
        """
        if not self._persistent:
            self._live_connection()
            return None
        response = await retry(self._requests.last_message_id, self._request_timeout_s)
        last = ids.entry_id(response.last_message_id)
        received = max(self._state.delivered, self._state.last_skipped, self._state.acked_up_to, self.last_chunk)
        if response.HasField("consumer_mark_delete_position"):
            received = max(received, ids.entry_id(response.consumer_mark_delete_position))
        return last if last > received and last[1] >= 0 else None

    def _can_receive(self) -> bool:
        """Return True if the broker could deliver now, and everything received was delivered to the application.

        The consumer must be subscribed and active, have permits, and have no queued entries or chunks.
        """
        connection, receiver_queue = self._connection(), self._receiver_queue
        is_live = connection is not None and connection.alive and self._state.accepts_entries
        return is_live and not receiver_queue and not receiver_queue.chunks and receiver_queue.permits.outstanding > 0

    async def seek(self, entry: EntryId | None = None, *, publish_time: int | None = None) -> None:
        """Continue with this entry, or with the first entry published at `publish_time` or later. Raises ClusterError.

        Give one of the two; `publish_time` is in milliseconds since the epoch. Pending acknowledgements are discarded, because
        they would move the cursor again. The consumer then subscribes again, also after an error: the broker may have moved the
        cursor nevertheless.
        """
        if not self._persistent:
            raise ClusterError(f"cannot seek: topic {self.topic} is not persistent and has no positions", Failure.FATAL)

        async def seek_once() -> None:
            try:
                await self._requests.seek(entry, publish_time)
            except ClusterError:
                if self._connection() is None:
                    self._reopen()  # the broker closed the consumer, as for every seek, but its response was lost
                raise

        self._state.begin_seek()
        self._acks.forget()
        self._receiver_queue.drop()
        try:
            await retry(seek_once, self._request_timeout_s)
        finally:
            self._state.end_seek(entry)
            self._acks.forget()  # acknowledgements from before the seek
            self._resubscribe(self._forget)

    async def stats(self) -> ConsumerStats:
        """Return the broker's statistics of this consumer. Raises ClusterError."""
        return await retry(self._requests.stats, self._request_timeout_s)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and end this consumer.

        Raises ClusterError; also if the subscription has other consumers, unless `force` is set.
        """
        self._state.begin_unsubscribe()
        try:
            await self._requests.unsubscribe(force)
            self.end(ClusterError(f"subscription {self.subscription.name} of topic {self.topic} is deleted", Failure.FATAL))
        finally:
            self._state.end_unsubscribe()
            if self._connection() is None:  # lost, or closed by the broker; after `end`, `_reopen` does nothing
                self._reopen()

    def end(self, error: ClusterError) -> None:
        """End the consumer; waiting and later calls raise this error."""
        self._detach()
        self._receiver_queue.drop()
        self._state.on_ended(error)
        self._stall_detector.stop()
        self._receiver_queue.permits.close()
        self._role_changed.set()
        self.wake()

    async def close(self, deadline: float | None = None) -> None:
        """Send all acknowledgements, also those behind an open chunked message, and close the consumer at the broker.

        Wait for the broker's response until `deadline` (loop time), or for one request timeout if it is None. The broker
        redelivers unacknowledged entries to other consumers.
        """
        if self._state.is_closed:
            return
        self._state.begin_close()
        self._acks.release_withheld()
        self._acks.flush()
        await self._stall_detector.close()
        await self._registration.cancel_attempt()
        connection = self._registration.connection
        self.end(ClusterError(f"the consumer of topic {self.topic} is closed", Failure.FATAL))
        self._acks.stop()
        self._receiver.stop()
        await self._registration.close(connection, deadline)
