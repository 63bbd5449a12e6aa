package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One feature of RocketMQ, see tests/sdk/rocketmq_features: prints its outcome.
 *
 * <pre>
 * --name-servers host:port  --feature NAME
 * --topic T                 names of other topics are its name and a suffix
 * --group G                 names of other groups are its name and a suffix
 * --folder F                for the offsets of broadcast consumers
 * --deadline 100            the program ends itself after so many seconds
 * </pre>
 */
public final class RocketFeatures {
    /** Returns the outcome, by name. */
    interface Feature {
        Map<String, Object> run(RocketFeatures run) throws Exception;
    }

    /** If no message arrives in this time, no further one is expected. */
    static final int QUIET_MS = 1500;

    private static final int POLL_MS = 50;
    private static final int PATIENCE_S = 60;
    private static final int PULL_SIZE = 32;

    final String topic;
    final String group;
    private final Args args;
    private int clients;

    private RocketFeatures(Args args) {
        this.args = args;
        topic = args.text("topic");
        group = args.text("group");
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            Map<String, Feature> features = new TreeMap<>(RocketFeaturesOfSending.ALL);
            features.putAll(RocketFeaturesOfDelivery.ALL);
            features.putAll(RocketFeaturesOfGroups.ALL);
            features.putAll(RocketFeaturesOfPulling.ALL);
            Feature feature = features.get(args.text("feature"));
            System.setProperty("rocketmq.client.localOffsetStoreDir", args.text("folder"));
            endAfter(args.count("deadline", 100), Thread.currentThread());
            Program.printNow(Program.object("outcome", feature.run(new RocketFeatures(args))));
        });
    }

    /** Ends the process with the stack of the program, which says what it waits for. */
    private static void endAfter(int seconds, Thread program) {
        Thread watch = new Thread(() -> {
            try {
                Thread.sleep(seconds * 1000L);
            } catch (InterruptedException ended) {
                return;
            }
            System.err.println("not done after " + seconds + " s:");
            for (StackTraceElement element : program.getStackTrace()) {
                System.err.println("  at " + element);
            }
            Runtime.getRuntime().halt(1);
        });
        watch.setDaemon(true);
        watch.start();
    }

    // --- clients -----------------------------------------------------------------------------------------------------

    /** Sets up a client, which gets a connection and a client id of its own. */
    <T extends ClientConfig> T configured(T client) {
        Rocket.configured(client, args);
        client.setInstanceName(group + "_" + ++clients);
        return client;
    }

    <T extends DefaultMQProducer> T started(T producer) throws MQClientException {
        Rocket.producer(producer, args);
        configured(producer).start();
        return producer;
    }

    DefaultMQProducer producer() throws MQClientException {
        return started(new DefaultMQProducer(group + "_producer"));
    }

    /** A member of the run's group that reads from the first message. */
    RocketMember member() {
        return member("");
    }

    RocketMember member(String suffix) {
        return new RocketMember(this, group + suffix);
    }

    /** Sends texts to one queue, or to all in turn if it is negative. */
    void send(Collection<?> values, int queue) throws Exception {
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        int number = 0;
        for (Object value : values) {
            producer.send(message(value), queues.get(queue < 0 ? number++ % queues.size() : queue));
        }
        producer.shutdown();
    }

    void send(Collection<?> values) throws Exception {
        send(values, -1);
    }

    Message message(Object value) {
        return new Message(topic, bytes(value));
    }

    /** Pulls all queues of a topic until so many messages are found, and once more. The topic may not exist yet. */
    List<MessageExt> read(String topic, int count) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer("_reader");
        until("route of " + topic, () -> hasRoute(consumer, topic));
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        long[] next = new long[queues.size()];
        List<MessageExt> messages = new ArrayList<>();
        until(count + " messages in " + topic, () -> {
            boolean complete = messages.size() >= count;
            for (int i = 0; i < next.length; i++) {
                PullResult result = consumer.pull(queues.get(i), "*", next[i], PULL_SIZE);
                next[i] = result.getNextBeginOffset();
                if (result.getPullStatus() == PullStatus.FOUND) {
                    messages.addAll(result.getMsgFoundList());
                }
            }
            return complete;
        });
        consumer.shutdown();
        return messages;
    }

    @SuppressWarnings("deprecation")  // replaced by the lite consumer in 5.x, and still what many programs use
    DefaultMQPullConsumer pullConsumer(String suffix) throws MQClientException {
        DefaultMQPullConsumer consumer = configured(new DefaultMQPullConsumer(group + suffix));
        consumer.start();
        return consumer;
    }

    private static boolean hasRoute(DefaultMQPullConsumer consumer, String topic) {
        try {
            return !consumer.fetchSubscribeMessageQueues(topic).isEmpty();
        } catch (MQClientException notYet) {
            return false;
        }
    }

    // --- waiting -----------------------------------------------------------------------------------------------------

    static void until(Object what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_S * 1_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("waited in vain for " + what);
            }
            Thread.sleep(POLL_MS);
        }
    }

    // --- values ------------------------------------------------------------------------------------------------------

    static byte[] bytes(Object value) {
        return String.valueOf(value).getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> texts(Collection<? extends Message> messages) {
        return messages.stream().map(RocketFeatures::text).toList();
    }

    static List<String> sorted(Collection<? extends Message> messages) {
        return texts(messages).stream().sorted().toList();
    }

    static int number(Message message) {
        return Integer.parseInt(text(message));
    }

    static List<Integer> numbers(int from, int to) {
        return IntStream.range(from, to).boxed().toList();
    }

    /** True if these are the numbers up to {@code end}, each once. */
    static boolean isRange(Collection<? extends Message> messages, int end) {
        return messages.stream().map(RocketFeatures::number).sorted().toList().equals(numbers(0, end));
    }

    /** True if the numbers in each queue ascend. */
    static boolean inOrder(Collection<? extends MessageExt> messages) {
        Map<Integer, Integer> last = new TreeMap<>();
        for (MessageExt message : messages) {
            Integer before = last.put(message.getQueueId(), number(message));
            if (before != null && before >= number(message)) {
                return false;
            }
        }
        return true;
    }
}
