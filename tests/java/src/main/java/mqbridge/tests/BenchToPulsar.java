package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** Asynchronous sends, in batches of {@code --batch} messages when that is more than one; the type becomes a property. */
final class BenchToPulsar implements BenchSink {
    private static final int MAX_PENDING = 2000;
    private static final long DELAY_MS = 1000;

    private final BenchCorpus corpus;
    private final PulsarClient client;
    private final Producer<byte[]> producer;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    BenchToPulsar(Args args, BenchCorpus corpus) throws PulsarClientException {
        this.corpus = corpus;
        int batch = args.count("batch", 1);
        client = BridgePulsar.client(args.text("url"), args);
        producer = client.newProducer(Schema.BYTES).topic(args.text("topic"))
                .enableBatching(batch > 1).batchingMaxMessages(Math.max(2, batch))
                .compressionType(CompressionType.valueOf(args.text("compression", "NONE")))
                .maxPendingMessages(MAX_PENDING).blockIfQueueFull(true).create();
    }

    @Override
    public void send(long first, int count) {
        for (long number = first; number < first + count; number++) {
            message(corpus.message(number)).sendAsync().whenComplete((id, thrown) -> {
                if (thrown != null) {
                    failure.compareAndSet(null, thrown);
                }
            });
        }
    }

    private TypedMessageBuilder<byte[]> message(BenchCorpus.Drawn drawn) {
        TypedMessageBuilder<byte[]> message = producer.newMessage();
        for (Map.Entry<String, String> pair : drawn.properties()) {
            message.property(pair.getKey(), pair.getValue());
        }
        if (drawn.type() != null) {
            message.property("type", drawn.type());
        }
        switch (drawn.oddity()) {
            case NULL_PAYLOAD -> message.value(null);
            case EMPTY_BODY -> message.value(new byte[0]);
            default -> message.value(drawn.body());
        }
        switch (drawn.oddity()) {
            case DELAYED -> message.deliverAfter(DELAY_MS, TimeUnit.MILLISECONDS);
            case OTHER_KEY -> message.keyBytes(drawn.body().length % 2 == 0 ? new byte[] {0, (byte) 0xff, 'k'} : new byte[0])
                    .orderingKey("ordered".getBytes(StandardCharsets.UTF_8)).eventTime(System.currentTimeMillis());
            default -> {
                if (drawn.key() != null) {
                    message.key(drawn.key());
                }
            }
        }
        return message;
    }

    @Override
    public void flush() throws Exception {
        producer.flush();
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
    }

    @Override
    public void close() throws PulsarClientException {
        client.close();
    }
}
