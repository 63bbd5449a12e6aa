"""The contract between the gateway and a system, and the registry that finds systems.

Messages move in batches. An `Inbound` yields one `InboundLane` per assigned partition, and each lane yields the partition's
batches. An `Outbound` sends shares of batches (`Share`: the messages for one target partition) to a topic. Only the adapter knows
the wire form of an acknowledgement (a TubeMQ confirm, an offset commit, a Pulsar ack). One conformance suite
(`tests/conformance`) tests every adapter against this package.

Every method may raise these errors, besides those in its docstring:

    ClusterError, RETRY or REFRESH   the same call may succeed later: the gateway joins the group again, with backoff
    ClusterError, FATAL              a person has to change something: the route stops and shows the error
    ProtocolError                    a peer, or our own code, violates the protocol
    LaneRevoked, GapError            the lane ends: its partition was revoked, or its source has lost messages

`Failure.REFUSED` concerns single messages and occurs only in receipts. Any other exception is a bug.

Deadlines are event loop times in seconds; None means `tools.deadlines.CLOSE_S` from now. An adapter obeys the deadline of its
caller, and chooses none of its own.

Read `cluster` first: it refers to all the other modules. `inbound`, `outbound` and `receipt` are the path of the messages.
`registry` is where a new adapter starts. `operations` is optional: administrative requests of the command line.
`tools` has helpers that are not part of the contract.
"""
