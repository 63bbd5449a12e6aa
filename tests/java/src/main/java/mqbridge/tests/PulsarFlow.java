package mqbridge.tests;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;

/**
 * Sends numbered messages to all partitions of a topic, in turn, until it is told to end; each partition has a named producer.
 *
 * <p>The control file is JSON, and read again at every step: {@code paused}, {@code ended}, and {@code burst}, the number of additional
 * messages per partition since the start. A line tells, per partition, how many messages were {@code sent} and {@code stored}.
 *
 * <pre>
 * --url pulsar://host:port  --topic T  --partitions N  --control FILE
 * --per-second 100   of all partitions together        --delay 0  seconds before the first that is no burst
 * --small 300        --large 24576     --large-every 97  sizes of the bodies
 * --keys 4           number of keys in each partition    --producer NAME
 * </pre>
 */
public final class PulsarFlow {
    private static final int STEP_MS = 100;
    private static final int HEAD_BYTES = 2 * Integer.BYTES;

    private final Args args;
    private final List<Producer<byte[]>> producers = new ArrayList<>();
    private final List<AtomicLong> stored = new ArrayList<>();
    private final long[] sent;
    private final int small;
    private final int large;
    private final int largeEvery;
    private final int keys;
    private volatile Throwable failure;

    private PulsarFlow(Args args) {
        this.args = args;
        sent = new long[args.count("partitions", 1)];
        small = args.count("small", 300);
        large = args.count("large", 24 << 10);
        largeEvery = args.count("large-every", 97);
        keys = args.count("keys", 4);
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            PulsarFlow flow = new PulsarFlow(args);
            try (PulsarClient client = PulsarClients.open(args)) {
                flow.run(client);
            }
        });
    }

    private void run(PulsarClient client) throws Exception {
        Path control = Path.of(args.text("control"));
        double perStep = args.number("per-second", 100) * STEP_MS / 1000.0;
        long begin = System.nanoTime() + TimeUnit.SECONDS.toNanos(args.number("delay", 0));
        String topic = args.text("topic");
        String name = args.text("producer", "flow");
        args.end();
        for (int partition = 0; partition < sent.length; partition++) {
            producers.add(producer(client, topic + "-partition-" + partition, name));
            stored.add(new AtomicLong());
        }
        double due = 0;
        long burst = 0;
        int turn = 0;
        while (true) {
            JsonObject wanted = JsonParser.parseString(Files.readString(control)).getAsJsonObject();
            for (; burst < wanted.get("burst").getAsLong(); burst++) {
                for (int partition = 0; partition < sent.length; partition++) {
                    send(partition);
                }
            }
            boolean paused = wanted.get("paused").getAsBoolean();
            if (!paused && System.nanoTime() >= begin) {
                for (due += perStep; due >= 1; due--) {
                    send(turn++ % sent.length);
                }
            }
            if (failure != null) {
                throw new IllegalStateException("a message was not stored", failure);
            }
            Program.printNow(Program.object("sent", sent, "stored", stored.stream().map(AtomicLong::get).toList(), "paused", paused, "burst", burst));
            if (wanted.get("ended").getAsBoolean()) {
                return;
            }
            TimeUnit.MILLISECONDS.sleep(STEP_MS);
        }
    }

    private static Producer<byte[]> producer(PulsarClient client, String topic, String name) throws PulsarClientException {
        return client.newProducer(Schema.BYTES).topic(topic).producerName(name).sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true)
                .create();
    }

    private void send(int partition) {
        long number = sent[partition]++;
        int size = number % largeEvery == largeEvery - 1 ? large : small;
        ByteBuffer body = ByteBuffer.allocate(size);
        while (body.remaining() >= HEAD_BYTES) {
            body.putInt(partition).putInt((int) number);
        }
        byte[] head = ByteBuffer.allocate(HEAD_BYTES).putInt(partition).putInt((int) number).array();
        body.put(head, 0, body.remaining());
        producers.get(partition).newMessage().key(partition + "-" + number % keys).value(body.array()).sendAsync().whenComplete((id, thrown) -> {
            if (thrown != null) {
                failure = thrown;
            } else {
                stored.get(partition).incrementAndGet();
            }
        });
    }
}
