"""The TubeMQ client for programs: begin at `client.TubeMQClient`. The gateway imports none of these modules.

A pack is the messages of one response of a Broker. The modules in parentheses are parts of the module before them.

    client                 one cluster: opens and closes everything below
    producer               sends messages
    consumer               receives and acknowledges messages (partition_feed, delivered_pack, delivery_queue)
    load_balancing_sender  sends encoded messages to any partition that accepts them (broker_blocklist)
    pack_puller            reads packs: the program pulls them one by one, or a function is called with each
    messages               encodes and decodes messages of the senders and packs
    balanced_consumer      a member of a group whose members choose their partitions (balanced_membership)

The senders to named partitions and the consumer of packs are in `client/`, since the gateway uses them, too.
"""
