package mqbridge.tests;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Counts and costs of a bridge: a line per second while it runs, and the sum at the end.
 *
 * <p>The sum begins with the first message's arrival, or with the first pack after {@code warmup} messages: a JVM compiles its hot code
 * during the first hundred thousand or so, at a cost of about 3 CPU seconds.
 */
final class BridgeFigures {
    private static final OperatingSystemMXBean SYSTEM = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final long warmup;
    private final Thread ticker = new Thread(this::everySecond, "figures");
    private long messages;
    private boolean begun;
    private boolean over;
    private long firstMessages;
    private long firstNanos;
    private long firstCpuNanos;
    private long lastNanos;
    private long lastCpuNanos;

    BridgeFigures(long warmup) {
        this.warmup = warmup;
        ticker.setDaemon(true);
        ticker.start();
    }

    /** A pack is here. */
    synchronized void arrived() {
        if (!begun && messages >= warmup) {
            begun = true;
            firstMessages = messages;
            firstNanos = System.nanoTime();
            firstCpuNanos = SYSTEM.getProcessCpuTime();
        }
    }

    /** A pack is stored and confirmed. */
    synchronized void stored(int count) {
        messages += count;
        lastNanos = System.nanoTime();
        lastCpuNanos = SYSTEM.getProcessCpuTime();
    }

    private void everySecond() {
        try {
            for (int second = 1; ; second++) {
                Thread.sleep(1000);
                printSecond(second);
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized void printSecond(int second) {
        if (!over) {
            Program.printNow(Program.object("second", second, "messages", messages, "cpuSeconds", SYSTEM.getProcessCpuTime() / 1e9));
        }
    }

    /** The last line; messages is all of them, measured those that seconds, rate and CPU are about, cpuSecondsProcess the whole process. */
    synchronized void last() throws IOException {
        over = true;
        long measured = messages - firstMessages;
        double seconds = (lastNanos - firstNanos) / 1e9;
        double cpu = (lastCpuNanos - firstCpuNanos) / 1e9;
        boolean some = begun && measured > 0;
        Program.printNow(Program.object("messages", messages, "measured", some ? measured : 0, "seconds", some ? seconds : null,
                "rate", some ? measured / seconds : null, "cpuSeconds", some ? cpu : null,
                "cpuSecondsPerMillion", some ? cpu / measured * 1e6 : null,
                "cpuSecondsProcess", SYSTEM.getProcessCpuTime() / 1e9, "peakRssBytes", peakRss()));
    }

    private static long peakRss() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            String kilobytes = lines.filter(line -> line.startsWith("VmHWM:")).findFirst().orElseThrow().replaceAll("\\D", "");
            return Long.parseLong(kilobytes) << 10;
        }
    }
}
