package mqbridge.tests;

import static mqbridge.tests.PulsarFeatures.bytes;
import static mqbridge.tests.PulsarFeatures.ids;
import static mqbridge.tests.PulsarFeatures.number;
import static mqbridge.tests.PulsarFeatures.numbers;
import static mqbridge.tests.PulsarFeatures.receive;
import static mqbridge.tests.PulsarFeatures.receiveAndAcknowledge;
import static mqbridge.tests.PulsarFeatures.rest;
import static mqbridge.tests.PulsarFeatures.text;
import static mqbridge.tests.PulsarFeatures.texts;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/** Where reading begins: readers, seeks, subscriptions and their positions; patterns, partitions and lost connections. */
final class FeaturesOfPositions {
    static final Map<String, PulsarFeatures.Feature> ALL = Map.ofEntries(
            Map.entry("reader", FeaturesOfPositions::reader),
            Map.entry("reader_in_batch", FeaturesOfPositions::readerInBatch),
            Map.entry("reader_seek", FeaturesOfPositions::readerSeek),
            Map.entry("seek_by_id", FeaturesOfPositions::seekById),
            Map.entry("seek_in_batch", FeaturesOfPositions::seekInBatch),
            Map.entry("seek_by_time", FeaturesOfPositions::seekByTime),
            Map.entry("last_message_id", FeaturesOfPositions::lastMessageId),
            Map.entry("initial_position", FeaturesOfPositions::initialPosition),
            Map.entry("durable", FeaturesOfPositions::durable),
            Map.entry("unsubscribe", FeaturesOfPositions::unsubscribe),
            Map.entry("pattern", FeaturesOfPositions::pattern),
            Map.entry("pattern_new_topic", FeaturesOfPositions::patternNewTopic),
            Map.entry("partitioned", FeaturesOfPositions::partitioned),
            Map.entry("broken_connection", FeaturesOfPositions::brokenConnection));

    private static final int RECEIVE_S = 30;
    private static final int PARTITIONS = 3;
    private static final int KEYS = 4;
    private static final int BURST = 5;
    private static final int CUTS = 3;
    /** Pause between messages that get different publish times, which count milliseconds. */
    private static final int APART_MS = 50;

    private FeaturesOfPositions() {}

    private static ReaderBuilder<byte[]> readerAt(PulsarFeatures run, MessageId start) {
        return run.client.newReader().topic(run.topic("")).startMessageId(start);
    }

    private static String readOne(Reader<byte[]> reader) throws Exception {
        Message<byte[]> message = reader.readNext(RECEIVE_S, TimeUnit.SECONDS);
        return message == null ? "nothing" : text(message);
    }

    private static List<String> read(Reader<byte[]> reader) throws Exception {
        List<String> values = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            values.add(readOne(reader));
        }
        reader.close();
        return values;
    }

    private static Map<String, Object> reader(PulsarFeatures run) throws Exception {
        List<MessageId> sent = run.send(numbers(0, 6));
        Reader<byte[]> latest = readerAt(run, MessageId.latest).create();
        boolean had = latest.hasMessageAvailable();
        run.send(List.of("later"));
        return Program.object("earliest", read(readerAt(run, MessageId.earliest).create()), "latest_had", had,
                "latest", List.of(readOne(latest)), "after_id", read(readerAt(run, sent.get(3)).create()),
                "from_id", read(readerAt(run, sent.get(3)).startMessageIdInclusive().create()));
    }

    private static Map<String, Object> readerInBatch(PulsarFeatures run) throws Exception {
        MessageId start = run.sendBatch(numbers(0, 6)).get(3);
        return Program.object("after_id", read(readerAt(run, start).create()), "from_id", read(readerAt(run, start).startMessageIdInclusive().create()));
    }

    private static Map<String, Object> readerSeek(PulsarFeatures run) throws Exception {
        List<MessageId> sent = run.send(numbers(0, 6));
        Reader<byte[]> reader = readerAt(run, MessageId.earliest).startMessageIdInclusive().create();
        List<String> first = new ArrayList<>();
        for (int i = 0; i < sent.size(); i++) {
            first.add(readOne(reader));
        }
        reader.seek(sent.get(2));
        return Program.object("first", first, "after_seek", read(reader));
    }

    private static Map<String, Object> seekById(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.startMessageIdInclusive());
        List<MessageId> sent = run.send(numbers(0, 6));
        receiveAndAcknowledge(consumer, 6);
        Map<String, Object> found = Program.object();
        consumer.seek(sent.get(2));
        found.put("id", texts(rest(consumer)));
        consumer.seek(MessageId.earliest);
        found.put("earliest", texts(rest(consumer)));
        consumer.seek(MessageId.latest);
        found.put("latest", texts(rest(consumer)));
        return found;
    }

    private static Map<String, Object> seekInBatch(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.startMessageIdInclusive());
        List<MessageId> sent = run.sendBatch(numbers(0, 6));
        receiveAndAcknowledge(consumer, 6);
        consumer.seek(sent.get(2));
        return Program.object("received", texts(rest(consumer)));
    }

    private static Map<String, Object> seekByTime(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        for (int number : numbers(0, 6)) {
            run.send(List.of(number));
            Thread.sleep(APART_MS);
        }
        consumer.seek(receiveAndAcknowledge(consumer, 6).get(3).getPublishTime());
        return Program.object("received", texts(rest(consumer)));
    }

    private static Map<String, Object> lastMessageId(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        boolean single = run.send(numbers(0, 3)).get(2).compareTo(consumer.getLastMessageIds().get(0)) == 0;
        boolean batch = run.sendBatch(numbers(0, 3)).get(2).compareTo(consumer.getLastMessageIds().get(0)) == 0;
        return Program.object("single", single, "batch", batch);
    }

    private static Map<String, Object> initialPosition(PulsarFeatures run) throws Exception {
        run.send(numbers(0, 3));
        Consumer<byte[]> earliest = run.consumer(builder -> builder.subscriptionName("earliest"));
        Consumer<byte[]> latest = run.consumer(builder ->
                builder.subscriptionName("latest").subscriptionInitialPosition(SubscriptionInitialPosition.Latest));
        run.send(numbers(3, 5));
        return Program.object("earliest", texts(rest(earliest)), "latest", texts(rest(latest)));
    }

    private static Map<String, Object> durable(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        run.send(numbers(0, 6));
        List<Message<byte[]>> messages = receive(consumer, 6);
        for (Message<byte[]> message : messages.subList(0, 3)) {
            consumer.acknowledge(message);
        }
        run.client.close();
        run.client = run.newClient();
        List<Message<byte[]>> again = rest(run.consumer(builder -> builder.subscriptionInitialPosition(SubscriptionInitialPosition.Latest)));
        return Program.object("again", texts(again), "same_ids", ids(again).equals(ids(messages.subList(3, 6))));
    }

    private static Map<String, Object> unsubscribe(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        run.send(numbers(0, 3));
        receiveAndAcknowledge(consumer, 3);
        consumer.unsubscribe();
        return Program.object("again", texts(rest(run.consumer())));
    }

    private static Consumer<byte[]> matching(PulsarFeatures run) throws Exception {
        Pattern pattern = Pattern.compile(run.topic("-.*"));
        return run.subscribe(run.client.newConsumer().topicsPattern(pattern), builder -> builder.patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS));
    }

    private static Map<String, Object> pattern(PulsarFeatures run) throws Exception {
        for (String suffix : List.of("-a", "-b", "other")) {
            run.send(suffix, List.of(suffix), builder -> {});
        }
        return Program.object("received", texts(rest(matching(run))).stream().sorted().toList());
    }

    private static Map<String, Object> patternNewTopic(PulsarFeatures run) throws Exception {
        run.send("-a", List.of("-a"), builder -> {});
        Consumer<byte[]> consumer = matching(run);
        List<String> before = texts(receiveAndAcknowledge(consumer, 1));
        run.send("-b", List.of("-b"), builder -> {});
        return Program.object("before", before, "after", texts(receiveAndAcknowledge(consumer, 1)));
    }

    private static Map<String, Object> partitioned(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> producer = run.producer();
        for (int number : numbers(0, 12)) { // round robin
            producer.send(bytes(number));
        }
        for (int number : numbers(12, 24)) {
            producer.newMessage().key("k" + number % KEYS).value(bytes(number)).send();
        }
        Map<Integer, List<Integer>> byPartition = new TreeMap<>();
        Map<String, Set<Integer>> byKey = new TreeMap<>();
        for (Message<byte[]> message : receiveAndAcknowledge(consumer, 24)) {
            int partition = ((MessageIdAdv) message.getMessageId()).getPartitionIndex();
            byPartition.computeIfAbsent(partition, each -> new ArrayList<>()).add(number(message));
            if (message.hasKey()) {
                byKey.computeIfAbsent(message.getKey(), each -> new TreeSet<>()).add(partition);
            }
        }
        consumer.close();
        return Program.object("partitions", run.client.getPartitionsForTopic(run.topic("")).get().size(),
                "all_once", byPartition.values().stream().flatMap(List::stream).sorted().toList().equals(numbers(0, 24)),
                "spread", byPartition.size() == PARTITIONS,
                "in_order", byPartition.values().stream().allMatch(each -> each.equals(each.stream().sorted().toList())),
                "one_partition_per_key", byKey.values().stream().allMatch(each -> each.size() == 1),
                "left", texts(rest(run.consumer())));
    }

    private static Map<String, Object> brokenConnection(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> producer = run.producer();
        for (int first = 0; first < BURST * CUTS; first += BURST) {
            for (int number : numbers(first, first + BURST)) {
                producer.sendAsync(bytes(number));
            }
            PulsarFeatures.ask("cut");
            producer.flush();
        }
        Set<String> seen = new LinkedHashSet<>();
        while (seen.size() < BURST * CUTS) {
            seen.addAll(texts(receiveAndAcknowledge(consumer, 1)));
        }
        rest(consumer);
        PulsarFeatures.ask("cut");
        producer.send(bytes("after"));
        Set<String> after = new TreeSet<>(texts(rest(consumer)));
        after.removeAll(seen);
        consumer.close();
        return Program.object("received", seen, "after", after, "left", texts(rest(run.consumer())));
    }
}
