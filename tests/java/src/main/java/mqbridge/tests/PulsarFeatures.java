package mqbridge.tests;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * One feature of Pulsar, see tests/sdk/features: prints its outcome.
 *
 * <pre>
 * --url pulsar://host:port  --feature NAME  --topic T     of which the feature derives the names of its topics
 * --listener NAME                                         advertised listener whose addresses are used
 * --keys FOLDER                                           with public.pem and private.pem
 * </pre>
 */
public final class PulsarFeatures {
    /** Returns the outcome, by name. */
    interface Feature {
        Map<String, Object> run(PulsarFeatures run) throws Exception;
    }

    interface ProducerSettings {
        void set(ProducerBuilder<byte[]> builder) throws Exception;
    }

    interface ConsumerSettings {
        void set(ConsumerBuilder<byte[]> builder) throws Exception;
    }

    private static final int RECEIVE_S = 30;
    /** If no message arrives in this time, no further one is expected. */
    private static final int QUIET_MS = 1_500;

    private static final int POLL_MS = 100;
    private static final int MAX_POLLS = 600;

    final String keys;
    PulsarClient client;
    private final String url;
    private final String base;
    private final String listener;

    private PulsarFeatures(Args args) throws PulsarClientException {
        url = args.text("url");
        base = args.text("topic");
        listener = args.text("listener", null);
        keys = args.text("keys", null);
        client = newClient();
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            Map<String, Feature> features = new TreeMap<>(FeaturesOfSending.ALL);
            features.putAll(FeaturesOfSharing.ALL);
            features.putAll(FeaturesOfRedelivery.ALL);
            features.putAll(FeaturesOfPositions.ALL);
            Feature feature = features.get(args.text("feature"));
            PulsarFeatures run = new PulsarFeatures(args);
            args.end();
            Program.printNow(Program.object("outcome", feature.run(run)));
            run.client.close();
        });
    }

    /** A client with connections of its own. */
    PulsarClient newClient() throws PulsarClientException {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(url);
        return (listener == null ? builder : builder.listenerName(listener)).build();
    }

    String topic(String suffix) {
        return base + suffix;
    }

    Producer<byte[]> producer(String suffix, ProducerSettings settings) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic(suffix)).enableBatching(false);
        settings.set(builder);
        return builder.create();
    }

    Producer<byte[]> producer() throws Exception {
        return producer("", builder -> {});
    }

    /** Sends texts, each in an entry of its own, and returns their ids. */
    List<MessageId> send(String suffix, List<?> values, ProducerSettings settings) throws Exception {
        List<MessageId> ids = new ArrayList<>();
        try (Producer<byte[]> producer = producer(suffix, settings)) {
            for (Object value : values) {
                ids.add(producer.send(bytes(value)));
            }
        }
        return ids;
    }

    List<MessageId> send(List<?> values) throws Exception {
        return send("", values, builder -> {});
    }

    /** Sends texts as one batch and returns their ids. */
    List<MessageId> sendBatch(String suffix, List<?> values, ProducerSettings settings) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = producer(suffix, builder -> {
            oneBatch(builder, values.size());
            settings.set(builder);
        })) {
            for (Object value : values) {
                sent.add(producer.sendAsync(bytes(value)));
            }
            producer.flush();
        }
        return sent.stream().map(CompletableFuture::join).toList();
    }

    List<MessageId> sendBatch(List<?> values) throws Exception {
        return sendBatch("", values, builder -> {});
    }

    static void oneBatch(ProducerBuilder<byte[]> builder, int count) {
        builder.enableBatching(true).batchingMaxMessages(count).batchingMaxPublishDelay(10, TimeUnit.SECONDS);
    }

    /** Subscribes from the earliest message, unless the settings say otherwise. */
    Consumer<byte[]> consumer(String suffix, ConsumerSettings settings) throws Exception {
        return subscribe(client.newConsumer().topic(topic(suffix)), settings);
    }

    Consumer<byte[]> subscribe(ConsumerBuilder<byte[]> builder, ConsumerSettings settings) throws Exception {
        builder.subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        settings.set(builder);
        return builder.subscribe();
    }

    Consumer<byte[]> consumer(ConsumerSettings settings) throws Exception {
        return consumer("", settings);
    }

    Consumer<byte[]> consumer() throws Exception {
        return consumer("", builder -> {});
    }

    /** Lets the harness do something, and waits until it has done it. */
    static void ask(String action) throws IOException {
        Program.printNow(Program.object("do", action));
        while (System.in.read() != '\n') {
            continue;
        }
    }

    // --- receiving ---------------------------------------------------------------------------------------------------

    static List<Message<byte[]>> receive(Consumer<byte[]> consumer, int count) throws PulsarClientException {
        List<Message<byte[]>> messages = new ArrayList<>();
        while (messages.size() < count) {
            Message<byte[]> message = consumer.receive(RECEIVE_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new IllegalStateException("received only " + texts(messages) + " of " + count);
            }
            messages.add(message);
        }
        return messages;
    }

    static List<Message<byte[]>> receiveAndAcknowledge(Consumer<byte[]> consumer, int count) throws PulsarClientException {
        List<Message<byte[]>> messages = receive(consumer, count);
        for (Message<byte[]> message : messages) {
            consumer.acknowledge(message);
        }
        return messages;
    }

    /** Receives until nothing more arrives, and acknowledges it. */
    static List<Message<byte[]>> rest(Consumer<byte[]> consumer) throws PulsarClientException {
        List<Message<byte[]>> messages = new ArrayList<>();
        Message<byte[]> message;
        while ((message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS)) != null) {
            messages.add(message);
            consumer.acknowledge(message);
        }
        return messages;
    }

    /** Receives and acknowledges {@code count} messages by all consumers together; returns the numbers that each received. */
    static List<List<Integer>> gather(List<Consumer<byte[]>> consumers, int count) throws PulsarClientException {
        List<List<Integer>> numbers = new ArrayList<>();
        consumers.forEach(consumer -> numbers.add(new ArrayList<>()));
        int received = 0;
        for (int poll = 0; poll < MAX_POLLS && received < count; poll++) {
            for (int i = 0; i < consumers.size(); i++) {
                Message<byte[]> message = consumers.get(i).receive(POLL_MS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    numbers.get(i).add(number(message));
                    consumers.get(i).acknowledge(message);
                    received++;
                }
            }
        }
        for (int i = 0; i < consumers.size(); i++) {
            numbers.get(i).addAll(rest(consumers.get(i)).stream().map(PulsarFeatures::number).toList());
        }
        return numbers;
    }

    static byte[] bytes(Object value) {
        return String.valueOf(value).getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    static int number(Message<byte[]> message) {
        return Integer.parseInt(text(message));
    }

    static List<String> texts(List<Message<byte[]>> messages) {
        return messages.stream().map(PulsarFeatures::text).toList();
    }

    static List<MessageId> ids(List<Message<byte[]>> messages) {
        return messages.stream().map(message -> message.getMessageId()).toList();
    }

    static List<Integer> numbers(int from, int to) {
        return java.util.stream.IntStream.range(from, to).boxed().toList();
    }
}
