package mqbridge.tests;

import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** What a producing benchmark has sent and what was answered; figures are asked for once per pack, so that asking costs nothing. */
final class BenchCount {
    private static final int PACK = 500;
    private static final long LOOK_MS = 1;

    private final BridgeProgress progress;
    private final AtomicLong answered = new AtomicLong();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    BenchCount(BridgeProgress progress) {
        this.progress = progress;
    }

    /** The message of this number is sent next. */
    void sending(long number) {
        if (number % PACK == 0) {
            progress.arrived();
            if (failure.get() != null) {
                throw new IllegalStateException("a message was not stored", failure.get());
            }
        }
    }

    /** One is stored, or was not. */
    void answered(Throwable thrown) {
        answered(1, thrown);
    }

    /** So many are stored, or were not. */
    void answered(int count, Throwable thrown) {
        if (thrown != null) {
            failure.compareAndSet(null, thrown);
        }
        long before = answered.getAndAdd(count);
        long packs = (before + count) / PACK - before / PACK;
        if (packs > 0) {
            progress.stored((int) packs * PACK);
        }
    }

    /** Waits for the last answer; the number of messages is one of whole packs. */
    void await(long messages) throws InterruptedException {
        while (answered.get() < messages && failure.get() == null) {
            Thread.sleep(LOOK_MS);
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
    }
}
