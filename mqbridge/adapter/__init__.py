"""The contract between the gateway and a system, and the registry that finds systems.

Everything is about batches. Where messages come from is an `Inbound`, which hands out one `InboundLane` per assigned partition;
where they go is an `Outbound`, which is sent shares of batches. What an acknowledgement is on the wire (a confirm, an offset
commit, an ack) is known to the adapter alone. One conformance suite (`tests/conformance`) holds every adapter to this package.

What may be raised, besides what a method says itself: ClusterError with a `failure` of RETRY or REFRESH means that the same call
may succeed later (the gateway begins the session anew, with backoff); FATAL means that a person has to change something (the
route stops and shows it). REFUSED concerns messages and stands in receipts. ProtocolError is a peer that breaks the protocol,
LaneRevoked and GapError are how a lane ends. Anything else is a bug.

Deadlines are times of the event loop. None is CLOSE_S from now; nobody below has a deadline of its own for shutting down.

Read `cluster` first: it names everything else. Then `inbound`, `outbound` and `receipt`, which messages go through, and
`registry`, which an adapter begins with; `operations` is for people, and optional.
"""
