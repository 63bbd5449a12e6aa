"""The contract between the gateway and a system, and the registry that finds systems.

The unit is the batch. Messages come from an `Inbound`, which hands out one `InboundLane` per assigned partition; they go to an
`Outbound`, which sends shares of batches. Only the adapter knows what an acknowledgement is on the wire (a confirm, an offset
commit, an ack). One conformance suite (`tests/conformance`) tests every adapter against this package.

Errors, besides those that a method lists itself: ClusterError with `failure` RETRY or REFRESH means that the same call may
succeed later (the gateway joins the group again, with backoff); FATAL means that a person has to change something (the route
stops and shows it). REFUSED concerns single messages and occurs in receipts. ProtocolError means that a peer violates the
protocol; LaneRevoked and GapError end a lane. Any other exception is a bug.

Deadlines are event loop times. None means CLOSE_S from now; code below the gateway has no shutdown deadline of its own.

Read `cluster` first: it names everything else. Then `inbound`, `outbound` and `receipt`, the path of the messages, and
`registry`, with which an adapter starts; `operations` is for people, and optional.
"""
