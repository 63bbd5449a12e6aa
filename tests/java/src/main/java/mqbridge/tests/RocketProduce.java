package mqbridge.tests;

import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.common.ClientErrorCode;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingTooMuchRequestException;

/**
 * Produces messages to a RocketMQ topic, asynchronously, with a bounded number of unanswered messages.
 *
 * <p>The broker runs the requests of a connection side by side: only {@code --window 1} (with {@code --batch}: that many) keeps the order of a
 * queue. What a busy broker refuses (code 2), and what has no route yet, is sent again.
 *
 * <pre>
 * --name-servers host:port  --topic T        --group G (producers)     --messages N (1)   --start 0
 * --size 1024               --tags a,b       tags, in turn             --keys "k{n} l{n}" {n} becomes the sequence number
 * --properties k=v,k2=v{n}  --delay-level 0  --deliver-after 0         ms from now, by the timer of 5.x brokers
 * --sharding-key s{n}       the same queue for the same key            --queue -1         this queue, counted over sorted brokers
 * --batch 1                 messages per send; batches go to one queue each, in turn
 * --one-way                 without answer   --window 1000  --timeout 60  seconds without any answer before it gives up
 * --print                   a line per stored message                  --instance NAME  --tls  --access-key K  --secret-key S
 * </pre>
 */
public final class RocketProduce {
    private static final int SYSTEM_BUSY = 2;
    private static final long BUSY_PAUSE_MS = 20;

    private final String topic;
    private final long end;
    private final Body body;
    private final List<String> tags;
    private final String keys;
    private final List<Map.Entry<String, String>> properties;
    private final int delayLevel;
    private final long deliverAfter;
    private final String shardingKey;
    private final int queue;
    private final int batch;
    private final boolean oneWay;
    private final int windowSize;
    private final long timeout;
    private final boolean print;
    private final Semaphore window;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final long first;
    private final Queue<Sent> again = new ConcurrentLinkedQueue<>();
    private final AtomicLong busy = new AtomicLong();
    private MessageQueue chosen;
    private long next;

    private RocketProduce(Args args) {
        topic = args.text("topic");
        first = args.number("start", 0);
        next = first;
        end = first + args.number("messages", 1);
        body = new Body(args.count("size", 1024));
        tags = args.list("tags");
        keys = args.text("keys", null);
        properties = args.pairs("properties");
        delayLevel = args.count("delay-level", 0);
        deliverAfter = args.number("deliver-after", 0);
        shardingKey = args.text("sharding-key", null);
        queue = args.count("queue", -1);
        batch = args.count("batch", 1);
        oneWay = args.flag("one-way");
        windowSize = Math.max(batch, args.count("window", 1000));
        timeout = args.number("timeout", 60);
        print = args.flag("print");
        window = new Semaphore(windowSize);
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            RocketProduce produce = new RocketProduce(args);
            DefaultMQProducer producer = Rocket.producer(new DefaultMQProducer(args.text("group", "producers"), Rocket.hook(args)), args);
            args.end();
            producer.start();
            produce.run(producer);
            producer.shutdown();
        });
    }

    private void run(DefaultMQProducer producer) throws Exception {
        if (queue >= 0) {
            chosen = producer.fetchPublishMessageQueues(topic).stream().sorted().toList().get(queue);
        }
        long started = System.nanoTime();
        do {
            sendAll(producer);
            acquire(windowSize);
            window.release(windowSize);
        } while (!again.isEmpty());
        double seconds = (System.nanoTime() - started) / 1e9;
        Program.print(Program.object("messages", end - first, "seconds", seconds, "rate", (end - first) / seconds, "busy", busy.get()));
    }

    /** Sends until nothing is left to be sent; some sends may then still be unanswered, and come back to {@code again}. */
    private void sendAll(DefaultMQProducer producer) throws Exception {
        while (next < end || !again.isEmpty()) {
            int count = (int) Math.min(batch, Math.max(1, end - next));
            acquire(count);
            Sent sent = again.poll();
            if (sent != null) {
                Thread.sleep(BUSY_PAUSE_MS);
            }
            if (sent == null && next < end) {
                sent = new Sent(next, count);
                next += count;
            }
            if (sent == null) {
                window.release(count);
                continue;
            }
            window.release(count - sent.messages.size());
            if (batch > 1) {
                sendBatch(producer, sent);
            } else {
                sendOne(producer, sent);
            }
        }
    }

    private void acquire(int permits) throws Exception {
        if (!window.tryAcquire(permits, timeout, TimeUnit.SECONDS)) {
            throw new TimeoutException("the broker answered nothing for " + timeout + " s");
        }
        if (failure.get() != null) {
            throw new IllegalStateException("a message was not stored", failure.get());
        }
    }

    private void sendOne(DefaultMQProducer producer, Sent sent) throws Exception {
        Message message = sent.messages.get(0);
        if (oneWay) {
            sendOneWay(producer, message);
        } else if (shardingKey != null) {
            producer.send(message, new SelectMessageQueueByHash(), message.getProperty(Rocket.SHARDING_KEY), sent);
        } else if (chosen != null) {
            producer.send(message, chosen, sent);
        } else {
            producer.send(message, sent);
        }
    }

    private void sendOneWay(DefaultMQProducer producer, Message message) throws Exception {
        if (chosen == null) {
            producer.sendOneway(message);
        } else {
            producer.sendOneway(message, chosen);
        }
        window.release();
    }

    private void sendBatch(DefaultMQProducer producer, Sent sent) throws Exception {
        if (chosen != null) {
            producer.send(sent.messages, chosen, sent);
        } else {
            producer.send(sent.messages, sent);
        }
    }

    private Message message(long sequence) {
        Message message = new Message(topic, body.of(sequence));
        if (!tags.isEmpty()) {
            message.setTags(tags.get((int) (sequence % tags.size())));
        }
        if (keys != null) {
            message.setKeys(Body.numbered(keys, sequence));
        }
        for (Map.Entry<String, String> pair : properties) {
            message.putUserProperty(pair.getKey(), Body.numbered(pair.getValue(), sequence));
        }
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        if (deliverAfter > 0) {
            MessageAccessor.putProperty(message, Rocket.DELIVER_MS, Long.toString(System.currentTimeMillis() + deliverAfter));
        }
        if (shardingKey != null) {
            MessageAccessor.putProperty(message, Rocket.SHARDING_KEY, Body.numbered(shardingKey, sequence));
        }
        return message;
    }

    /** One send: a message or a batch, and what to do with the broker's answer. */
    private final class Sent implements SendCallback {
        private final long sequence;
        private final List<Message> messages;

        Sent(long sequence, int count) {
            this.sequence = sequence;
            messages = LongStream.range(sequence, sequence + count).mapToObj(RocketProduce.this::message).toList();
        }

        @Override
        public void onSuccess(SendResult result) {
            if (print) {
                String[] offsetIds = result.getOffsetMsgId().split(",");
                for (int i = 0; i < messages.size(); i++) {
                    Program.print(line(result, i, offsetIds[i]));
                }
            }
            window.release(messages.size());
        }

        private Map<String, Object> line(SendResult result, int index, String offsetId) {
            Map<String, Object> line = Program.object("seq", sequence + index, "status", result.getSendStatus().name(),
                    "messageId", messages.get(index).getProperty("UNIQ_KEY"), "offsetMessageId", offsetId,
                    "offset", result.getQueueOffset() + index);
            Rocket.describe(line, result.getMessageQueue());
            Body.describe(line, body.of(sequence + index), false);
            return line;
        }

        @Override
        public void onException(Throwable thrown) {
            if (thrown instanceof MQBrokerException refused && refused.getResponseCode() == SYSTEM_BUSY || !wasSent(thrown)) {
                busy.incrementAndGet();
                again.add(this);
            } else {
                failure.compareAndSet(null, new IllegalStateException("message " + sequence + " was not stored", thrown));
            }
            window.release(messages.size());
        }

        /** False when no broker got it: there was no route, name servers did not answer (5.3.3 says it like that), or time was up before. */
        private static boolean wasSent(Throwable thrown) {
            boolean noRoute = thrown instanceof MQClientException unknown
                    && unknown.getResponseCode() == ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION;
            return !noRoute && !(thrown instanceof IllegalStateException) && !(thrown instanceof RemotingTooMuchRequestException);
        }
    }
}
