"""The TubeMQ client of the adapter, which moves packs; `mqbridge.tubemq.library` has the client for programs.

    connections   server_connection: calls to one server, connected lazily and again after a loss; tcp_connection: one TCP
                  connection and its deadlines; connection_pool: all of a cluster
    metadata      master: the active Master, and its tokens; routes: a producer's view of Brokers and partitions; topic_probe
    sending       partition_sender: named partitions, in order (partition_send_queue, broker_reconnector, send_result)
    consuming     pack_consumer: a member to which the Master assigns partitions (membership, group_consumer, group_member,
                  held_partitions, broker_heartbeats, flow_control, read_budget)
    a partition   partition: reads one (partition_state and its tables, partition_reader, _commits, _registration, _release)
    ranges        range_reader and stable_range_reader: a range of one partition, outside of any member's group
    admin         the administration HTTP API

State belongs to a client id and never to a connection, so Masters and Brokers may restart at any time.
"""
