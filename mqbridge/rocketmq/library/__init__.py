"""The public RocketMQ client, for applications, built on `client/`. The gateway uses `client/` directly, not this folder.

client            RocketMQClient, which opens everything below
producer          Producer: sends messages to all queues of a topic; `queue_batcher` batches them per queue
transactions      TransactionProducer: sends transactional messages
consumer          Consumer: delivers the messages of a group one by one; `queue_reader` reads one queue, `delivered_pull`
                  tracks which messages of a pull are acknowledged
pop_consumer      PopConsumer: consumes by POP; `pop` has the requests, `pop_receipts` the receipts
group_member      GroupMember: reads as a member of a group, and yields the responses to its pulls before they are decoded
query             Query: looks up single messages
outgoing          OutgoingMessage: a message to send; `encoding` encodes it as the gateway does
lazy_client       LazyClusterClient: the protocol client that everything but consumers, readers and group members shares
"""
