package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Fills a topic with messages of {@link BenchCorpus} by the official client of its system.
 *
 * <pre>
 * --sink tubemq|pulsar|rocketmq  --topic T      and where it is, as {@link JavaBridge} is told
 * --sink print                                  prints the messages, without a topic
 * --messages 1  --batch 1  --threads 8          messages per send, where the client has batches; threads that send
 * --compression NONE             --rate 0       messages per second (0: no limit)
 * </pre>
 */
public final class BenchFill {
    private final int batch;
    private final int threads;
    private final long rate;
    private final AtomicLong next = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final long wanted;
    private long before;
    private long messages;
    private long started;

    BenchFill(Args args) {
        wanted = args.number("messages", 1);
        batch = args.count("batch", 1);
        threads = args.count("threads", 8);
        rate = args.number("rate", 0);
    }

    public static void main(String[] argv) {
        System.setProperty("rocketmq.client.logUseSlf4j", "true");
        Program.main(argv, args -> {
            BenchFill fill = new BenchFill(args);
            try (BenchSink sink = BenchSink.of(args, new BenchCorpus(args))) {
                args.end();
                double seconds = fill.run(sink, fill.wanted);
                Program.print(Program.object("messages", fill.wanted, "seconds", seconds, "rate", fill.wanted / seconds));
            }
        });
    }

    /** Sends so many messages more; the seconds that it took. */
    double run(BenchSink sink, long count) throws Exception {
        started = System.nanoTime();
        before = messages;
        messages += count;
        next.set(before);
        List<Thread> sending = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> sendSome(sink), "fill-" + i);
            thread.start();
            sending.add(thread);
        }
        for (Thread thread : sending) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
        sink.flush();
        return (System.nanoTime() - started) / 1e9;
    }

    private void sendSome(BenchSink sink) {
        try {
            for (long first = next.getAndAdd(batch); first < messages && failure.get() == null; first = next.getAndAdd(batch)) {
                keepRate(first);
                sink.send(first, (int) Math.min(batch, messages - first));
            }
        } catch (Throwable thrown) {
            failure.compareAndSet(null, thrown);
        }
    }

    private void keepRate(long sent) throws InterruptedException {
        if (rate > 0) {
            TimeUnit.NANOSECONDS.sleep(Math.max(0, started + (sent - before) * 1_000_000_000L / rate - System.nanoTime()));
        }
    }
}
