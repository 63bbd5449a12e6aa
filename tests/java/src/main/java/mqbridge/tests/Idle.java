package mqbridge.tests;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/**
 * When a consumer stops: after so many messages (0: no limit), after so many seconds without one (0: wait for ever), or as soon as there is
 * a file of the name that {@code --until} gives.
 */
final class Idle {
    private final long wanted;
    private final long patienceNanos;
    private final Path until;
    private long seen;
    private long last = System.nanoTime();

    Idle(Args args) {
        wanted = args.number("messages", 0);
        patienceNanos = TimeUnit.SECONDS.toNanos(args.number("idle", 30));
        String file = args.text("until", null);
        until = file == null ? null : Path.of(file);
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
        boolean tired = patienceNanos > 0 && System.nanoTime() - last > patienceNanos;
        return tired || complete() || until != null && Files.exists(until);
    }
}
