"""An asyncio client of TubeMQ, a library of its own. Begin at `client.TubeMQClient`; docs/clients/tubemq.md says the rest.

    session       calls to one server; connections are made when they are needed and replaced without a word
    master        whichever Master is active, and its tokens
    routes        what a producer knows of Brokers and partitions
    producer      named partitions in order (line); spread: any that is well (shielding)
    consumer      a member to which the Master assigns partitions (membership, holding); balanced: one that chooses
    partition     reading one of them (tenure, progress, pack, flow); reading: all of them, by pull or push
    tail, admin   the newest message; the administrators' HTTP API

State belongs to a client id and never to a connection, so Masters and Brokers may restart at any time.
"""
