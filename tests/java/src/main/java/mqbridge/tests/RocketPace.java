package mqbridge.tests;

import java.util.Map;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends messages to a RocketMQ topic at a rate, with the time-out that the client has as shipped, and never tries one again by itself.
 *
 * <p>The number of a message is its key, too. A line per attempt: {@code seq}, {@code ms} until it was answered or given up, {@code status} when it was stored, or {@code code} of the
 * refusal (-1: there was no answer of the server) and {@code error}.
 *
 * <pre>
 * --name-servers host:port  --topic T   --group G (producers)   --messages N (1)   --start 0   --size 200
 * --rate 100                messages per second                 --timeout 3000     ms
 * --again                   sends a message again, 100 ms later, until it is stored
 * --delay-level 0           --properties k=v
 * </pre>
 */
public final class RocketPace {
    private static final int NO_ANSWER = -1;
    private static final long AGAIN_MS = 100;

    private final String topic;
    private final Body body;
    private final int delayLevel;
    private final Iterable<Map.Entry<String, String>> properties;
    private final int timeout;
    private final boolean again;
    private final DefaultMQProducer producer;
    private final ScheduledExecutorService later = Executors.newSingleThreadScheduledExecutor();
    private final Semaphore done = new Semaphore(0);

    private RocketPace(Args args, DefaultMQProducer producer) {
        this.producer = producer;
        topic = args.text("topic");
        body = new Body(args.count("size", 200));
        delayLevel = args.count("delay-level", 0);
        properties = args.pairs("properties");
        timeout = args.count("timeout", 3000);
        again = args.flag("again");
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            DefaultMQProducer producer = Rocket.producer(new DefaultMQProducer(args.text("group", "producers")), args);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            RocketPace pace = new RocketPace(args, producer);
            long first = args.number("start", 0);
            int messages = args.count("messages", 1);
            long pauseNs = 1_000_000_000L / args.number("rate", 100);
            args.end();
            producer.start();
            long begin = System.nanoTime();
            for (int i = 0; i < messages; i++) {
                TimeUnit.NANOSECONDS.sleep(begin + i * pauseNs - System.nanoTime());
                pace.send(first + i);
            }
            pace.done.acquire(messages);
            Program.print(Program.object("messages", messages));
            producer.shutdown();
        });
    }

    private void send(long sequence) {
        Message message = new Message(topic, body.of(sequence));
        message.setKeys(Long.toString(sequence));
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        for (Map.Entry<String, String> pair : properties) {
            message.putUserProperty(pair.getKey(), pair.getValue());
        }
        Attempt attempt = new Attempt(sequence);
        try {
            producer.send(message, attempt, timeout);
        } catch (Exception failure) {
            attempt.onException(failure);
        }
    }

    /** One send of a message. */
    private final class Attempt implements SendCallback {
        private final long sequence;
        private final long began = System.nanoTime();

        Attempt(long sequence) {
            this.sequence = sequence;
        }

        @Override
        public void onSuccess(SendResult result) {
            print("status", result.getSendStatus().name());
            done.release();
        }

        @Override
        public void onException(Throwable failure) {
            print("code", failure instanceof MQBrokerException refused ? refused.getResponseCode() : NO_ANSWER, "error", failure.toString());
            if (again) {
                later.schedule(() -> send(sequence), AGAIN_MS, TimeUnit.MILLISECONDS);
            } else {
                done.release();
            }
        }

        private void print(Object... result) {
            long now = System.nanoTime();
            Map<String, Object> line = Program.object("seq", sequence, "ms", (now - began) / 1_000_000, "time", System.currentTimeMillis());
            line.putAll(Program.object(result));
            Program.printNow(line);
        }
    }
}
