package mqbridge.tests;

import java.util.concurrent.TimeUnit;

/** When a consumer stops: after so many messages (0: no limit), or after so many seconds without one (0: wait for ever). */
final class Idle {
    private final long wanted;
    private final long patienceNanos;
    private long seen;
    private long last = System.nanoTime();

    Idle(Args args) {
        wanted = args.number("messages", 0);
        patienceNanos = TimeUnit.SECONDS.toNanos(args.number("idle", 30));
    }

    synchronized void saw(long messages) {
        seen += messages;
        last = System.nanoTime();
    }

    synchronized long seen() {
        return seen;
    }

    /** True when all wanted messages came. */
    synchronized boolean complete() {
        return wanted > 0 && seen >= wanted;
    }

    synchronized boolean over() {
        return complete() || patienceNanos > 0 && System.nanoTime() - last > patienceNanos;
    }
}
