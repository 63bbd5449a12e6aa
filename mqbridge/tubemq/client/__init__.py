"""An asyncio client of TubeMQ, a library of its own. Begin at `client.TubeMQClient`; docs/clients/tubemq.md says the rest.

    session       calls to one server; connections are made when they are needed and replaced without a word
                  (sessions: those of a cluster)
    master        whichever Master is active, and its tokens
    routes        what a producer knows of Brokers and partitions
    producer      named partitions in order (line, line_connection, send_result); spread: any that is well (shielding)
    consumer      a member to which the Master assigns partitions (membership); balanced: one that chooses
                  (group_consumer: what both do; held_partitions: what they hold)
    partition     reading one of them (partition_reader, partition_state, partition_calls); reading: all of them, by pull or push
    range_reader, admin  a range of one partition, as nobody's member; the administrators' HTTP API

State belongs to a client id and never to a connection, so Masters and Brokers may restart at any time.
"""
