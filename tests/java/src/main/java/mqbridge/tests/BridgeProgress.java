package mqbridge.tests;

import java.util.concurrent.atomic.AtomicReference;

/** What the threads of a bridge share: how far it is, and what stopped it. */
final class BridgeProgress {
    private final Idle idle;
    private final BridgeFigures figures;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    BridgeProgress(Args args) {
        idle = new Idle(args);
        figures = new BridgeFigures(args.number("warmup", 0));
    }

    /** A pack is here. */
    void arrived() {
        figures.arrived();
    }

    /** A pack is stored and acknowledged. */
    void stored(int count) {
        figures.stored(count);
        idle.saw(count);
    }

    void failed(Throwable thrown) {
        failure.compareAndSet(null, thrown);
    }

    boolean over() {
        return idle.over() || failure.get() != null;
    }

    /** Ends the figures, or throws what stopped the bridge. */
    void end() throws Exception {
        if (failure.get() != null) {
            throw new IllegalStateException("the bridge stopped", failure.get());
        }
        figures.last();
    }
}
