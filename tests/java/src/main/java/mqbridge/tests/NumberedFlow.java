package mqbridge.tests;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;

/**
 * Sends numbered messages to all partitions of a topic, in turn, until it is told to end.
 *
 * <p>The control file is JSON, and read again at every step: {@code paused}, {@code ended}, and {@code burst}, the number of additional
 * messages per partition since the start. A line tells, per partition, how many messages were {@code sent} and {@code stored}.
 *
 * <pre>
 * --topic T          --partitions N                    --control FILE
 * --per-second 100   of all partitions together        --delay 0  seconds before the first that is no burst
 * --small 300        --large 24576     --large-every 97  sizes of the bodies
 * --keys 4           number of keys in each partition
 * </pre>
 */
abstract class NumberedFlow {
    private static final int STEP_MS = 100;
    private static final int HEAD_BYTES = 2 * Integer.BYTES;

    final String topic;
    final int partitions;
    private final long[] sent;
    private final List<AtomicLong> stored;
    private final Path control;
    private final double perStep;
    private final long delay;
    private final int small;
    private final int large;
    private final int largeEvery;
    private final int keys;
    private volatile Throwable failure;

    NumberedFlow(Args args) {
        topic = args.text("topic");
        partitions = args.count("partitions", 1);
        sent = new long[partitions];
        stored = Stream.generate(AtomicLong::new).limit(partitions).toList();
        control = Path.of(args.text("control"));
        perStep = args.number("per-second", 100) * STEP_MS / 1000.0;
        delay = args.number("delay", 0);
        small = args.count("small", 300);
        large = args.count("large", 24 << 10);
        largeEvery = args.count("large-every", 97);
        keys = args.count("keys", 4);
    }

    /** Sends a message after all earlier ones of its partition, and calls {@link #stored} or {@link #failed}; may wait while many are sent. */
    abstract void send(int partition, String key, byte[] body) throws Exception;

    final void stored(int partition, int count) {
        stored.get(partition).addAndGet(count);
    }

    final void failed(Throwable thrown) {
        failure = thrown;
    }

    final void run() throws Exception {
        long begin = System.nanoTime() + TimeUnit.SECONDS.toNanos(delay);
        double due = 0;
        long burst = 0;
        int turn = 0;
        while (true) {
            JsonObject wanted = JsonParser.parseString(Files.readString(control)).getAsJsonObject();
            for (; burst < wanted.get("burst").getAsLong(); burst++) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(partition);
                }
            }
            boolean paused = wanted.get("paused").getAsBoolean();
            if (!paused && System.nanoTime() >= begin) {
                for (due += perStep; due >= 1; due--) {
                    send(turn++ % partitions);
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

    private void send(int partition) throws Exception {
        long number = sent[partition]++;
        int size = number % largeEvery == largeEvery - 1 ? large : small;
        ByteBuffer body = ByteBuffer.allocate(size);
        while (body.remaining() >= HEAD_BYTES) {
            body.putInt(partition).putInt((int) number);
        }
        byte[] head = ByteBuffer.allocate(HEAD_BYTES).putInt(partition).putInt((int) number).array();
        body.put(head, 0, body.remaining());
        send(partition, partition + "-" + number % keys, body.array());
    }
}
