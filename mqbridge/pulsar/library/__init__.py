"""The Pulsar client library for applications; it implements `mqbridge.library.contract`. The gateway does not use it.

    client           PulsarClient: the client of one cluster; opens producers, consumers and readers
    producer         Producer: sends messages to all partitions of a topic
    consumer         Consumer: receives and acknowledges messages of topics, as a member of a subscription
    reader           Reader: reads topics without a subscription
    options          subscription modes and access modes
    topic_names      conversion between the application's topic names and full names
    topic_producer   TopicProducer: chooses the partition of each message
    batching         Batcher: collects the messages of one partition into batch entries
    topic_consumer   TopicConsumer: receives entries of all partitions of topics, new partitions included
    received_entry   ReceivedEntry: the acknowledgement handle of the messages of one entry

The layer below, `mqbridge.pulsar.client`, sends and receives entries: an entry is the content of one SEND or MESSAGE command.
"""
