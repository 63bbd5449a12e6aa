package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * How long messages take from being sent to one topic until they are received from another, or from the same: both by the official clients,
 * on the clock of one process.
 *
 * <pre>
 * --sink S --topic T            as {@link BenchFill}, with its other options
 * --source S --from-topic T     --from-master, --from-url when both ends are of one system and of two clusters
 * --group G
 * --start 0                     number of the first message; what has a smaller one is from an earlier run
 * --hello 0                     messages that have to come before the next are sent: who receives them is ready then
 * --warmup 0                    messages that the figures leave out, those included
 * --wait 60                     seconds for a message to come before it is taken for lost
 * </pre>
 */
public final class BenchProbe {
    private static final int QUANTILES = 1000;

    private final long start;
    private final int warmup;
    private final long waitNanos;
    private final AtomicLongArray sent;
    private final AtomicLongArray received;
    private final AtomicInteger count = new AtomicInteger();
    private final int hello;
    private volatile long lastReceived = System.nanoTime();

    private BenchProbe(Args args) {
        int messages = args.count("messages", 1);
        start = args.number("start", 0);
        warmup = args.count("warmup", 0);
        waitNanos = TimeUnit.SECONDS.toNanos(args.number("wait", 60));
        sent = new AtomicLongArray(messages);
        received = new AtomicLongArray(messages);
        hello = args.count("hello", 0);
    }

    public static void main(String[] argv) {
        System.setProperty("rocketmq.client.logUseSlf4j", "true");
        Program.main(argv, args -> {
            BenchProbe probe = new BenchProbe(args);
            BenchFill fill = new BenchFill(args);
            try (BenchSink sink = BenchSink.of(args, new BenchCorpus(args));
                    BenchSource source = BenchSource.of(args, probe::receive)) {
                args.end();
                BenchSink stamped = probe.stamped(sink);
                fill.run(stamped, probe.hello);
                probe.await(probe.hello);
                fill.run(stamped, probe.sent.length() - probe.hello);
                probe.await(probe.sent.length());
                probe.print();
            }
        });
    }

    /** The sink, with the time noted when a message is handed to the client. */
    private BenchSink stamped(BenchSink sink) {
        return new BenchSink() {
            @Override
            public void send(long first, int count) throws Exception {
                long now = System.nanoTime();
                for (int i = 0; i < count; i++) {
                    sent.set((int) first + i, now);
                }
                sink.send(start + first, count);
            }

            @Override
            public void flush() throws Exception {
                sink.flush();
            }

            @Override
            public void close() throws Exception {
                sink.close();
            }
        };
    }

    private void receive(byte[] body) {
        long now = System.nanoTime();
        long number = HexFormat.fromHexDigitsToLong(new String(body, 0, BenchCorpus.NUMBER_DIGITS, StandardCharsets.US_ASCII)) - start;
        if (number >= 0 && number < received.length() && received.compareAndSet((int) number, 0, now)) {
            lastReceived = now;
            count.incrementAndGet();
        }
    }

    private void await(int wanted) throws Exception {
        while (count.get() < wanted) {
            if (System.nanoTime() - lastReceived > waitNanos) {
                throw new TimeoutException("only " + count.get() + " of " + wanted + " messages came");
            }
            Thread.sleep(5);
        }
    }

    /** Times in microseconds; the rate is that of receiving. */
    private void print() {
        int measured = sent.length() - warmup;
        long[] took = new long[measured];
        long[] came = new long[measured];
        for (int i = 0; i < measured; i++) {
            came[i] = received.get(warmup + i);
            took[i] = came[i] - sent.get(warmup + i);
        }
        Arrays.sort(took);
        Arrays.sort(came);
        long[] quantiles = new long[QUANTILES];
        for (int i = 0; i < QUANTILES; i++) {
            quantiles[i] = took[(int) ((i + 0.5) / QUANTILES * measured)] / 1000;
        }
        double seconds = (came[measured - 1] - came[0]) / 1e9;
        Program.print(Program.object("messages", measured, "rate", measured / seconds, "quantiles", quantiles));
    }
}
