package mqbridge.tests;

import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** A listener on all partitions. */
final class BenchFromPulsar implements BenchSource {
    private final PulsarClient client;

    BenchFromPulsar(Args args, Receiver receiver) throws PulsarClientException {
        client = BridgePulsar.client(args.text("from-url", args.text("url")), args);
        client.newConsumer(Schema.BYTES).topic(args.text("from-topic")).subscriptionName(args.text("group"))
                .subscriptionType(SubscriptionType.Failover)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .messageListener((consumer, message) -> {
                    receiver.received(message.getValue());
                    consumer.acknowledgeAsync(message);
                }).subscribe();
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }
}
