package mqbridge.tests;

import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVER_RECEIVE_OVERFLOW;
import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVICE_UNAVAILABLE;

import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;

/**
 * Produces messages to a TubeMQ topic, asynchronously, with a bounded number of unanswered sends.
 *
 * <p>The SDK never sends a message again, so this does: after 419 and 503 always (such a message comes later than its neighbours; with
 * {@code --window 1} order is kept), after any other failure only with {@code --resend}, and then a message may be stored twice.
 *
 * <pre>
 * --master host:port  --topic T  --messages N (1)  --start 0      first sequence number
 * --size 1024         --types a,b                                 message types, in turn
 * --time yyyyMMddHHmm --attributes k=v,k2=v{n}                    {n} becomes the sequence number
 * --window 2000       --rate 0                                    unanswered sends; messages per second (0: no limit)
 * --resend            --timeout 120                               seconds without any answer before it gives up
 * --print                                                         a line per stored message
 * </pre>
 */
public final class TubeProduce {
    // The broker's memory cache takes a moment to reach the disk; asking again at once only fills the link with refusals.
    private static final long OVERFLOW_PAUSE_MS = 5;
    private static final long FAILURE_PAUSE_MS = 200;
    private static final long WINDOW_BYTES = 64L << 20;

    private final String topic;
    private final long end;
    private final Body body;
    private final List<String> types;
    private final String time;
    private final List<Map.Entry<String, String>> attributes;
    private final int windowSize;
    private final long rate;
    private final boolean resend;
    private final long timeout;
    private final boolean print;

    private final Semaphore window;
    private final Queue<Numbered> again = new ConcurrentLinkedQueue<>();
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private final AtomicLong overflows = new AtomicLong();
    private final AtomicLong resent = new AtomicLong();
    private volatile long pauseMs;
    private MessageProducer producer;
    private long next;

    private TubeProduce(Args args) {
        topic = args.text("topic");
        next = args.number("start", 0);
        end = next + args.number("messages", 1);
        int size = args.count("size", 1024);
        body = new Body(size);
        types = args.list("types");
        time = args.text("time", null);
        attributes = args.pairs("attributes");
        windowSize = (int) Math.max(1, Math.min(args.number("window", 2000), WINDOW_BYTES / size));
        window = new Semaphore(windowSize);
        rate = args.number("rate", 0);
        resend = args.flag("resend");
        timeout = args.number("timeout", 120);
        print = args.flag("print");
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            TubeClientConfig config = new TubeClientConfig(args.text("master"));
            config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
            TubeProduce produce = new TubeProduce(args);
            args.end();
            TubeSingleSessionFactory factory = new TubeSingleSessionFactory(config);
            produce.run(factory.createProducer());
            factory.shutdown();
        });
    }

    private void run(MessageProducer opened) throws Exception {
        producer = opened;
        producer.publish(topic);
        long first = next;
        long started = System.nanoTime();
        do {
            send(first, started);
            acquire(windowSize);
            window.release(windowSize);
        } while (!again.isEmpty());
        double seconds = (System.nanoTime() - started) / 1e9;
        Program.print(Program.object("messages", end - first, "seconds", seconds, "rate", (end - first) / seconds,
                "overflows", overflows.get(), "resent", resent.get()));
    }

    /** Sends until nothing is left to be sent; some sends may then still be unanswered, and come back to {@code again}. */
    private void send(long first, long started) throws Exception {
        while (next < end || !again.isEmpty()) {
            acquire(1);
            Numbered numbered = again.poll();
            if (numbered == null && next < end) {
                keepRate(next - first, started);
                numbered = new Numbered(next, message(next));
                next++;
            }
            if (numbered == null) {
                window.release();
            } else {
                send(numbered);
            }
        }
    }

    private void acquire(int permits) throws Exception {
        if (pauseMs > 0) {
            Thread.sleep(pauseMs);
            pauseMs = 0;
        }
        if (!window.tryAcquire(permits, timeout, TimeUnit.SECONDS)) {
            throw new TimeoutException("the broker answered nothing for " + timeout + " s");
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private void keepRate(long sent, long started) throws InterruptedException {
        if (rate > 0) {
            long ahead = started + sent * 1_000_000_000L / rate - System.nanoTime();
            TimeUnit.NANOSECONDS.sleep(Math.max(0, ahead));
        }
    }

    private Message message(long sequence) {
        Message message = new Message(topic, body.of(sequence));
        String type = types.isEmpty() ? null : types.get((int) (sequence % types.size()));
        if (type != null || time != null) {
            message.putSystemHeader(type, time);
        }
        for (Map.Entry<String, String> pair : attributes) {
            message.setAttrKeyVal(pair.getKey(), Body.numbered(pair.getValue(), sequence));
        }
        return message;
    }

    private void send(Numbered numbered) throws InterruptedException {
        try {
            producer.sendMessage(numbered.message, numbered);
        } catch (TubeClientException refused) {
            numbered.onException(refused);
        }
    }

    /** A message with its number, and what to do with the broker's answer. */
    private final class Numbered implements MessageSentCallback {
        private final long sequence;
        private final Message message;

        Numbered(long sequence, Message message) {
            this.sequence = sequence;
            this.message = message;
        }

        @Override
        public void onMessageSent(MessageSentResult result) {
            int code = result.getErrCode();
            if (result.isSuccess()) {
                stored(result);
            } else if (code == SERVER_RECEIVE_OVERFLOW || code == SERVICE_UNAVAILABLE) {
                overflows.incrementAndGet();
                sendAgain(OVERFLOW_PAUSE_MS);
            } else {
                failed(new IllegalStateException(code + " " + result.getErrMsg()));
            }
            window.release();
        }

        @Override
        public void onException(Throwable thrown) {
            failed(thrown);
            window.release();
        }

        private void failed(Throwable thrown) {
            if (resend) {
                sendAgain(FAILURE_PAUSE_MS);
            } else {
                failure.compareAndSet(null, new IllegalStateException("message " + sequence + " was not stored", thrown));
            }
        }

        private void sendAgain(long pause) {
            resent.incrementAndGet();
            pauseMs = Math.max(pauseMs, pause);
            again.add(this);
        }

        private void stored(MessageSentResult result) {
            if (!print) {
                return;
            }
            Map<String, Object> line = Program.object("seq", sequence);
            Body.describe(line, message.getData(), false);
            line.put("attributes", message.getAttribute());
            line.put("partition", result.getPartition().getPartitionKey());
            line.put("offset", result.getAppendOffset());
            line.put("messageId", result.getMessageId());
            Program.print(line);
        }
    }
}
