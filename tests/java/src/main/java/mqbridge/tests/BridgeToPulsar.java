package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * A batching producer per partition. All of a pack is sent without waiting; its end flushes the batch: until the pack is acknowledged nothing
 * can follow that would fill it.
 */
final class BridgeToPulsar implements BridgeSink {
    // More than the largest pack can hold, so that a full queue is a slow target and not a large pack.
    private static final int MAX_PENDING = 10_000;

    private final PulsarClient client;
    private final String target;
    private final ProducerBuilder<byte[]> builder;
    private final Map<Integer, Producer<byte[]>> producers = new ConcurrentHashMap<>();

    BridgeToPulsar(Args args) throws PulsarClientException {
        target = args.text("target");
        client = BridgePulsar.client(args.text("target-url", args.text("url")), args);
        builder = client.newProducer(Schema.BYTES)
                .enableBatching(true)
                .batchingMaxPublishDelay(args.number("linger-ms", 2), TimeUnit.MILLISECONDS)
                .batchingMaxMessages(args.count("batch-messages", 1000))
                .batchingMaxBytes(args.count("batch-bytes", 512 << 10))
                .compressionType(CompressionType.valueOf(args.text("compression", "NONE")))
                .maxPendingMessages(MAX_PENDING)
                .blockIfQueueFull(true);
    }

    @Override
    public BridgeSink.Pack pack(int partition) {
        return new Pack(producers.computeIfAbsent(partition, this::producer));
    }

    private Producer<byte[]> producer(int partition) {
        return builder.clone().topic(target + "-partition-" + partition).createAsync().join();
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }

    private static final class Pack implements BridgeSink.Pack {
        private final Producer<byte[]> producer;
        private final List<CompletableFuture<MessageId>> sends = new ArrayList<>();
        private TypedMessageBuilder<byte[]> message;

        Pack(Producer<byte[]> producer) {
            this.producer = producer;
        }

        @Override
        public void message(byte[] body) {
            send();
            message = producer.newMessage().value(body);
        }

        private void send() {
            if (message != null) {
                sends.add(message.sendAsync());
            }
        }

        @Override
        public void property(String name, String value) {
            message.property(name, value);
        }

        @Override
        public void type(String type) {
            message.property(BridgeMapping.MSG_TYPE, type);
        }

        @Override
        public void key(String key) {
            message.key(key);
        }

        @Override
        public void keys(String keys) {
            message.property(BridgeMapping.KEYS, keys);
        }

        @Override
        public void eventTime(long millis) {
            message.eventTime(millis);
        }

        @Override
        public boolean store() {
            send();
            message = null;
            producer.flushAsync();
            try {
                sends.forEach(CompletableFuture::join);
                return true;
            } catch (CompletionException notStored) {
                System.err.println("not stored, will come again: " + notStored.getCause());
                return false;
            }
        }
    }
}
