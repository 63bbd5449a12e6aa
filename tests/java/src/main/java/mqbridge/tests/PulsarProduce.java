package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * Produces messages to a Pulsar topic, asynchronously, with a bounded number of unanswered sends.
 *
 * <pre>
 * --url pulsar://host:port  --topic T      --messages N (1)      --start 0    first sequence number; PulsarClients has more
 * --size 1024               --key k{n}     --ordering-key o{n}   {n} becomes the sequence number
 * --keys 0                  that of a key counts only so far and begins again (0: no end)
 * --properties k=v,k2=v{n}  --event-time 0 ms; 0: none           --deliver-after 0 ms from now
 * --batching true           --by-key       a batch for each key  --compression NONE|LZ4|ZLIB|ZSTD|SNAPPY
 * --chunk-bytes 0           cut larger messages, without batches --access Shared|Exclusive|ExclusiveWithFencing|WaitForExclusive
 * --producer NAME           --window 2000  --timeout 120         seconds without any answer before it gives up
 * --rate 0                  --print        messages per second (0: no limit); a line per stored message
 * --send-timeout 30                        seconds after which the client gives a message up (0: never)
 * --public-key FILE                        PEM: messages are encrypted, for whoever has its private key
 * </pre>
 */
public final class PulsarProduce {
    private static final int BATCH_MESSAGES = 1000;
    private static final int BATCH_BYTES = 128 << 10;

    private final long first;
    private final long end;
    private final Body body;
    private final String key;
    private final String orderingKey;
    private final List<Map.Entry<String, String>> properties;
    private final long keys;
    private final long eventTime;
    private final long deliverAfter;
    private final long rate;
    private final int windowSize;
    private final long timeout;
    private final boolean print;
    private final Semaphore window;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private PulsarProduce(Args args) {
        first = args.number("start", 0);
        end = first + args.number("messages", 1);
        body = new Body(args.count("size", 1024));
        key = args.text("key", null);
        orderingKey = args.text("ordering-key", null);
        properties = args.pairs("properties");
        keys = args.number("keys", 0);
        eventTime = args.number("event-time", 0);
        deliverAfter = args.number("deliver-after", 0);
        rate = args.number("rate", 0);
        windowSize = args.count("window", 2000);
        timeout = args.number("timeout", 120);
        print = args.flag("print");
        window = new Semaphore(windowSize);
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            PulsarProduce produce = new PulsarProduce(args);
            try (PulsarClient client = PulsarClients.open(args);
                    Producer<byte[]> producer = producer(client, args, produce.windowSize).create()) {
                args.end();
                produce.run(producer);
            }
        });
    }

    private static ProducerBuilder<byte[]> producer(PulsarClient client, Args args, int window) {
        ProducerBuilder<byte[]> builder = client.newProducer(Schema.BYTES).topic(args.text("topic"))
                .enableBatching(Boolean.parseBoolean(args.text("batching", "true")))
                .batchingMaxMessages(BATCH_MESSAGES).batchingMaxBytes(BATCH_BYTES)
                .compressionType(CompressionType.valueOf(args.text("compression", "NONE")))
                .hashingScheme(HashingScheme.Murmur3_32Hash)
                .accessMode(ProducerAccessMode.valueOf(args.text("access", "Shared")))
                .sendTimeout(args.count("send-timeout", 30), TimeUnit.SECONDS)
                .maxPendingMessages(window).blockIfQueueFull(true);
        if (args.flag("by-key")) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        int chunkBytes = args.count("chunk-bytes", 0);
        if (chunkBytes > 0) {
            builder.enableBatching(false).enableChunking(true).chunkMaxMessageSize(chunkBytes);
        }
        String publicKey = args.text("public-key", null);
        if (publicKey != null) {
            builder.addEncryptionKey("app").defaultCryptoKeyReader(Path.of(publicKey).toUri().toString());
        }
        String name = args.text("producer", null);
        return name == null ? builder : builder.producerName(name);
    }

    private void run(Producer<byte[]> producer) throws Exception {
        long started = System.nanoTime();
        for (long sequence = first; sequence < end; sequence++) {
            acquire(1);
            keepRate(sequence - first, started);
            long sent = sequence;
            message(producer, sequence).sendAsync().whenComplete((id, thrown) -> stored(sent, id, thrown));
        }
        producer.flushAsync();
        acquire(windowSize);
        double seconds = (System.nanoTime() - started) / 1e9;
        Program.print(Program.object("messages", end - first, "seconds", seconds, "rate", (end - first) / seconds));
    }

    private void keepRate(long sent, long started) throws InterruptedException {
        if (rate > 0) {
            long ahead = started + sent * 1_000_000_000L / rate - System.nanoTime();
            TimeUnit.NANOSECONDS.sleep(Math.max(0, ahead));
        }
    }

    private void acquire(int permits) throws Exception {
        if (!window.tryAcquire(permits, timeout, TimeUnit.SECONDS)) {
            throw new TimeoutException("the broker answered nothing for " + timeout + " s");
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
    }

    private TypedMessageBuilder<byte[]> message(Producer<byte[]> producer, long sequence) {
        TypedMessageBuilder<byte[]> message = producer.newMessage().value(body.of(sequence));
        if (key != null) {
            message.key(Body.numbered(key, keys > 0 ? sequence % keys : sequence));
        }
        if (orderingKey != null) {
            message.orderingKey(Body.numbered(orderingKey, sequence).getBytes(StandardCharsets.UTF_8));
        }
        if (eventTime > 0) {
            message.eventTime(eventTime);
        }
        if (deliverAfter > 0) {
            message.deliverAfter(deliverAfter, TimeUnit.MILLISECONDS);
        }
        for (Map.Entry<String, String> pair : properties) {
            message.property(pair.getKey(), Body.numbered(pair.getValue(), sequence));
        }
        return message;
    }

    private void stored(long sequence, MessageId id, Throwable thrown) {
        if (thrown != null) {
            failure.compareAndSet(null, thrown);
        } else if (print) {
            Map<String, Object> line = Program.object("seq", sequence);
            Body.describe(line, body.of(sequence), false);
            line.put("id", PulsarConsume.describe(id));
            Program.print(line);
        }
        window.release();
    }
}
