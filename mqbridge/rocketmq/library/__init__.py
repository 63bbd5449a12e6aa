"""The public client of RocketMQ, for programs; the gateway uses none of it and stands on `client/`.

client            RocketMQClient, which opens everything below
producer          Producer: messages to all queues of a topic, batched per queue by `queue_batcher`
transactions      TransactionProducer
consumer          Consumer: messages of a group, one by one; `queue_reader` reads a queue, `delivered_pull` keeps its acknowledgements
pop_consumer      PopConsumer, on `pop` (records and receipts)
group_member      GroupMember: the pulls of a group as they come
query             look-ups of single messages
outgoing          OutgoingMessage; `encoding` writes it as the gateway's mapping does
"""
