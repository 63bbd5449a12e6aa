"""The TubeMQ client of the adapter. It reads and confirms whole packs; the client for programs is in `mqbridge.tubemq.library`.

    connections   server_connection: calls to one server, which connects on the first call and again after a loss;
                  tcp_connection: one TCP connection and its deadlines; connection_pool: all connections of a cluster
    metadata      master: calls to the active Master, and its tokens; credentials: user and password; routes: a producer's view of
                  Brokers and partitions; topic_probe: whether a topic exists
    sending       partition_sender: sends to named partitions, in order (partition_send_queue, broker_reconnector, send_result)
    consuming     pack_consumer: a member to which the Master assigns partitions (membership, group_consumer, group_member,
                  held_partitions, broker_heartbeats, flow_control, read_budget)
    a partition   partition: reads one partition (partition_state: its state machine; partition_calls: its requests;
                  pack_reader and partition_registration: what their responses mean; partition_pacing: when the next get may
                  be sent; read_history: the packs that were read last)
    ranges        range_reader and stable_range_reader: read a range of one partition with a temporary group
    admin         the HTTP administration API

On the servers all state belongs to a client id and not to a connection, so a client goes on after Masters or Brokers restart.
"""
