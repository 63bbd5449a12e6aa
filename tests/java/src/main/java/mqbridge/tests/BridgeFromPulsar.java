package mqbridge.tests;

import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** A consumer and a thread per partition; what one batch receive brought is acknowledged, cumulatively, when all of it is stored. */
final class BridgeFromPulsar implements BridgeSource {
    private static final int PACK_MESSAGES = 1000;
    private static final int PACK_BYTES = 2 << 20;
    private static final int PACK_WAIT_MS = 20;
    private static final long AGAIN_MS = 200;

    private final BridgeProgress progress;
    private final PulsarClient client;
    private final String topic;
    private final String group;
    private final int receiverQueue;
    private final String origin;

    BridgeFromPulsar(Args args, BridgeProgress progress) throws PulsarClientException {
        this.progress = progress;
        client = BridgePulsar.client(args.text("url"), args);
        topic = args.text("topic");
        group = args.text("group");
        receiverQueue = args.count("receiver-queue", 2 * PACK_MESSAGES);
        origin = args.text("cluster", "pulsar") + "|" + topic + "|";
    }

    @Override
    public void run(BridgeSink sink) throws Exception {
        try (client) {
            List<String> partitions = client.getPartitionsForTopic(topic, false).get();
            List<Thread> receiving = new ArrayList<>();
            for (int i = 0; i < partitions.size(); i++) {
                int partition = i;
                Consumer<byte[]> consumer = consumer(client, partitions.get(i));
                Thread thread = new Thread(() -> receive(consumer, partition, sink), "receive-" + i);
                thread.start();
                receiving.add(thread);
            }
            for (Thread thread : receiving) {
                thread.join();
            }
            progress.end();
        }
    }

    private Consumer<byte[]> consumer(PulsarClient client, String partition) throws Exception {
        BatchReceivePolicy packs = BatchReceivePolicy.builder()
                .maxNumMessages(PACK_MESSAGES).maxNumBytes(PACK_BYTES).timeout(PACK_WAIT_MS, TimeUnit.MILLISECONDS).build();
        return client.newConsumer(Schema.BYTES).topic(partition).subscriptionName(group)
                .subscriptionType(SubscriptionType.Failover)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(receiverQueue).batchReceivePolicy(packs).subscribe();
    }

    private void receive(Consumer<byte[]> consumer, int partition, BridgeSink sink) {
        try (consumer) {
            while (!progress.over()) {
                Messages<byte[]> messages = consumer.batchReceive();
                if (messages.size() > 0) {
                    bridge(consumer, messages, partition, sink.pack(partition));
                }
            }
        } catch (Throwable thrown) {
            progress.failed(thrown);
        }
    }

    private void bridge(Consumer<byte[]> consumer, Messages<byte[]> messages, int partition, BridgeSink.Pack out) throws Exception {
        progress.arrived();
        Message<byte[]> last = null;
        for (Message<byte[]> message : messages) {
            map(message, partition, out);
            last = message;
        }
        if (out.store()) {
            consumer.acknowledgeCumulative(last);
            progress.stored(messages.size());
        } else {
            Thread.sleep(AGAIN_MS);
            consumer.redeliverUnacknowledgedMessages();
        }
    }

    private void map(Message<byte[]> message, int partition, BridgeSink.Pack out) throws Exception {
        out.message(message.getValue());
        for (Map.Entry<String, String> pair : message.getProperties().entrySet()) {
            switch (pair.getKey()) {
                case BridgeMapping.MSG_TYPE -> out.type(pair.getValue());
                case BridgeMapping.KEYS -> out.keys(pair.getValue());
                case BridgeMapping.ORIGIN -> { }
                default -> out.property(pair.getKey(), pair.getValue());
            }
        }
        if (message.hasKey()) {
            if (message.hasBase64EncodedKey()) {
                out.property(BridgeMapping.KEY + ".b64", message.getKey());
            } else {
                out.key(message.getKey());
            }
        }
        if (message.hasOrderingKey()) {
            out.property("mqbridge.ordering_key", Base64.getEncoder().encodeToString(message.getOrderingKey()));
        }
        if (message.getEventTime() > 0) {
            out.eventTime(message.getEventTime());
        }
        MessageIdAdv id = (MessageIdAdv) message.getMessageId();
        out.property(BridgeMapping.ORIGIN, origin + partition + "|" + id.getLedgerId() + ":" + id.getEntryId() + ":" + id.getBatchIndex());
    }
}
