"""The Pulsar client for programs, with the face of `mqbridge.library.contract`. The gateway does not use it.

    client           PulsarClient: one cluster; opens everything below
    producer         Producer: sends messages to all partitions of a topic
    consumer         Consumer: receives and acknowledges messages of topics, as a member of a subscription
    reader           Reader: reads topics without a subscription
    options          words that its methods take; `cluster_client` is its base, `topic_names` the names of topics
    topic_producer   TopicProducer: chooses partitions; `batching` makes entries of messages
    topic_consumer   TopicConsumer: entries of all partitions of topics, new ones included
    received_entry   the messages of one entry, and which of them are acknowledged

`mqbridge.pulsar.client` below moves entries: what one SEND stores and one MESSAGE delivers.
"""
