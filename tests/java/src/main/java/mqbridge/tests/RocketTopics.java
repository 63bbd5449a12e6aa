package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Many topics, which the producer creates by sending to them, and consumers of one group that have subscribed to all of them.
 *
 * <p>A message goes to each topic, and is awaited: with one consumer, with a second one, and once that has left. A line of each round says
 * how many messages each consumer got, how many came again, and how long it took.
 *
 * <pre>
 * --name-servers host:port  --topic PREFIX  --group G  --topics 1000  --patience 120 (s)
 * </pre>
 */
public final class RocketTopics {
    private static final int LOOK_MS = 20;
    // The shipped time is 30 s: a producer asks no sooner for the route of a topic that was made for it.
    private static final int ROUTES_MS = 5000;

    private final Args args;
    private final String prefix;
    private final int topics;
    private final long patience;
    private final Set<String> arrived = ConcurrentHashMap.newKeySet();
    private final AtomicInteger repeated = new AtomicInteger();

    private RocketTopics(Args args) {
        this.args = args;
        prefix = args.text("topic");
        topics = args.count("topics", 1000);
        patience = TimeUnit.SECONDS.toNanos(args.number("patience", 120));
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> new RocketTopics(args).run());
    }

    private void run() throws Exception {
        String group = args.text("group");
        DefaultMQProducer producer = Rocket.configured(new DefaultMQProducer(group + "_producer"), args);
        Member first = new Member(group, "first");
        Member second = new Member(group, "second");
        args.end();
        producer.start();
        first.consumer.start();
        round(producer, "alone", first, second);
        second.consumer.start();
        shared(producer, first, second);
        round(producer, "two", first, second);
        second.consumer.shutdown();
        round(producer, "left", first, second);
        first.consumer.shutdown();
        producer.shutdown();
    }

    /** Sends rounds until the second member gets its share: the first one still has the queues for some time. */
    private void shared(DefaultMQProducer producer, Member first, Member second) throws Exception {
        long end = System.nanoTime() + patience;
        for (int number = 0; second.count.get() < topics / 4; number++) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the second member got " + second.count.get() + " messages in " + number + " rounds");
            }
            second.count.set(0);
            round(producer, "joining-" + number, first, second);
        }
    }

    private void round(DefaultMQProducer producer, String name, Member first, Member second) throws Exception {
        first.count.set(0);
        int again = repeated.get();
        long began = System.nanoTime();
        List<String> sent = new ArrayList<>();
        for (int topic = 0; topic < topics; topic++) {
            String text = name + "/" + topic;
            producer.send(new Message(prefix + topic, text.getBytes()));
            sent.add(text);
        }
        long stored = System.nanoTime();
        while (!arrived.containsAll(sent)) {
            if (System.nanoTime() > stored + patience) {
                sent.removeAll(arrived);
                throw new IllegalStateException(sent.size() + " messages of " + name + " have not arrived, such as " + sent.get(0));
            }
            Thread.sleep(LOOK_MS);
        }
        Map<String, Object> line = Program.object("round", name, "first", first.count.get(), "second", second.count.get(),
                "again", repeated.get() - again, "sentMs", TimeUnit.NANOSECONDS.toMillis(stored - began),
                "ms", TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began));
        Program.printNow(line);
    }

    private final class Member {
        final DefaultMQPushConsumer consumer;
        final AtomicInteger count = new AtomicInteger();

        Member(String group, String name) throws Exception {
            consumer = Rocket.configured(new DefaultMQPushConsumer(group), args);
            consumer.setInstanceName(name);
            consumer.setPollNameServerInterval(ROUTES_MS);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            for (int topic = 0; topic < topics; topic++) {
                consumer.subscribe(prefix + topic, "*");
            }
            consumer.registerMessageListener((MessageListenerConcurrently) this::take);
        }

        private ConsumeConcurrentlyStatus take(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            for (MessageExt message : messages) {
                count.incrementAndGet();
                if (!arrived.add(new String(message.getBody()))) {
                    repeated.incrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }
}
