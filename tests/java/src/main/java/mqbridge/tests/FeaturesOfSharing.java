package mqbridge.tests;

import static mqbridge.tests.PulsarFeatures.bytes;
import static mqbridge.tests.PulsarFeatures.gather;
import static mqbridge.tests.PulsarFeatures.ids;
import static mqbridge.tests.PulsarFeatures.number;
import static mqbridge.tests.PulsarFeatures.numbers;
import static mqbridge.tests.PulsarFeatures.receive;
import static mqbridge.tests.PulsarFeatures.receiveAndAcknowledge;
import static mqbridge.tests.PulsarFeatures.rest;
import static mqbridge.tests.PulsarFeatures.texts;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionType;

/** Subscription types: which member of a subscription gets a message. */
final class FeaturesOfSharing {
    static final Map<String, PulsarFeatures.Feature> ALL = Map.of(
            "exclusive", FeaturesOfSharing::exclusive,
            "failover", FeaturesOfSharing::failover,
            "shared", run -> shared(run, 1),
            "shared_zero_queue", FeaturesOfSharing::zeroQueue,
            "key_shared", FeaturesOfSharing::keyShared,
            "key_shared_sticky", FeaturesOfSharing::keySharedSticky,
            "unacknowledged", FeaturesOfSharing::unacknowledged,
            "cancelled_receive", FeaturesOfSharing::cancelledReceive);

    private static final int MESSAGES = 20;
    private static final int KEYS = 20;
    private static final int ROUNDS = 5;
    private static final int POLL_MS = 200;
    private static final int MAX_POLLS = 100;
    private static final int WAITING = 5;
    private static final int RACING = 300;

    private FeaturesOfSharing() {}

    private static Map<String, Object> exclusive(PulsarFeatures run) throws Exception {
        Consumer<byte[]> first = run.consumer();
        String second = "accepted";
        try {
            run.consumer();
        } catch (PulsarClientException.ConsumerBusyException e) {
            second = "busy";
        }
        run.send(numbers(0, 3));
        List<String> received = texts(receive(first, 3));
        first.close();
        return Program.object("second", second, "received", received, "after_close", texts(receive(run.consumer(), 3)));
    }

    /** Counts the notes that its consumer has become the active one. */
    private static final class Notes implements ConsumerEventListener {
        private static final long serialVersionUID = 1;
        final AtomicInteger active = new AtomicInteger();

        @Override
        public void becameActive(Consumer<?> consumer, int partition) {
            active.incrementAndGet();
        }

        @Override
        public void becameInactive(Consumer<?> consumer, int partition) {}
    }

    private static Map<String, Object> failover(PulsarFeatures run) throws Exception {
        List<Notes> notes = List.of(new Notes(), new Notes());
        List<Consumer<byte[]>> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            String name = "ab".substring(i, i + 1);
            Notes noted = notes.get(i);
            members.add(run.consumer(builder -> builder.subscriptionType(SubscriptionType.Failover).consumerName(name).consumerEventListener(noted)));
        }
        run.send(numbers(0, 5));
        List<List<Message<byte[]>>> received = List.of(new ArrayList<>(), new ArrayList<>());
        while (received.get(0).size() + received.get(1).size() < 5) {
            for (int i = 0; i < 2; i++) {
                Message<byte[]> message = members.get(i).receive(POLL_MS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    received.get(i).add(message);
                }
            }
        }
        int active = received.get(0).isEmpty() ? 1 : 0;
        for (Message<byte[]> message : received.get(active).subList(0, 3)) {
            members.get(active).acknowledge(message);
        }
        int noted = notes.get(1 - active).active.get();
        members.get(active).close();
        run.send(numbers(5, 8));
        List<String> takenOver = texts(receive(members.get(1 - active), 5));
        boolean isNoted = false;
        for (int poll = 0; poll < MAX_POLLS && !isNoted; poll++) { // another thread takes the notes, maybe after the messages
            Thread.sleep(POLL_MS);
            isNoted = notes.get(active).active.get() > 0 && notes.get(1 - active).active.get() > noted;
        }
        return Program.object(
                "active", texts(received.get(active)), "standby", texts(received.get(1 - active)), "taken_over", takenOver,
                "noted", isNoted);
    }

    private static List<Consumer<byte[]>> sharedMembers(PulsarFeatures run, int queue) throws Exception {
        List<Consumer<byte[]>> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            members.add(run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).receiverQueueSize(queue)));
        }
        return members;
    }

    private static Map<String, Object> spread(List<List<Integer>> received, int count) {
        return Program.object("all_once", received.stream().flatMap(List::stream).sorted().toList().equals(numbers(0, count)),
                "both", received.stream().noneMatch(List::isEmpty));
    }

    private static Map<String, Object> shared(PulsarFeatures run, int queue) throws Exception {
        List<Consumer<byte[]>> members = sharedMembers(run, queue);
        run.send(numbers(0, MESSAGES));
        return spread(gather(members, MESSAGES), MESSAGES);
    }

    /** With a queue of 0 the client asks for one message when the application does. */
    private static Map<String, Object> zeroQueue(PulsarFeatures run) throws Exception {
        List<Consumer<byte[]>> members = sharedMembers(run, 0);
        run.send(numbers(0, MESSAGES));
        List<List<Integer>> received = List.of(new ArrayList<>(), new ArrayList<>());
        for (int turn = 0; turn < MESSAGES; turn++) {
            Message<byte[]> message = members.get(turn % 2).receive();
            received.get(turn % 2).add(number(message));
            members.get(turn % 2).acknowledge(message);
        }
        return spread(received, MESSAGES);
    }

    private static void sendKeyed(PulsarFeatures run) throws Exception {
        try (Producer<byte[]> producer = run.producer()) {
            for (int number : numbers(0, KEYS * ROUNDS)) {
                producer.newMessage().key("k" + number % KEYS).value(bytes(number)).send();
            }
        }
    }

    private static TreeSet<Integer> keys(List<Integer> received) {
        return received.stream().map(number -> number % KEYS).collect(Collectors.toCollection(TreeSet::new));
    }

    private static boolean inOrder(List<Integer> received) {
        return received.stream().collect(Collectors.groupingBy(number -> number % KEYS)).values().stream()
                .allMatch(each -> each.equals(each.stream().sorted().toList()));
    }

    private static Map<String, Object> keyShared(PulsarFeatures run) throws Exception {
        List<Consumer<byte[]>> members = new ArrayList<>();
        for (String name : List.of("a", "b")) {
            members.add(run.consumer(builder -> builder.subscriptionType(SubscriptionType.Key_Shared).consumerName(name)));
        }
        sendKeyed(run);
        List<List<Integer>> received = gather(members, KEYS * ROUNDS);
        Map<String, Object> outcome = spread(received, KEYS * ROUNDS);
        outcome.put("one_member_per_key", Collections.disjoint(keys(received.get(0)), keys(received.get(1))));
        outcome.put("in_order", received.stream().allMatch(FeaturesOfSharing::inOrder));
        return outcome;
    }

    private static Map<String, Object> keySharedSticky(PulsarFeatures run) throws Exception {
        List<Consumer<byte[]>> members = new ArrayList<>();
        for (Range range : List.of(Range.of(0, 32767), Range.of(32768, 65535))) {
            members.add(run.consumer(builder ->
                    builder.subscriptionType(SubscriptionType.Key_Shared).keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(range))));
        }
        sendKeyed(run);
        List<List<Integer>> received = gather(members, KEYS * ROUNDS);
        return Program.object("low", keys(received.get(0)), "high", keys(received.get(1)));
    }

    /** What a closed consumer of a shared subscription has not acknowledged goes to the others. */
    private static Map<String, Object> unacknowledged(PulsarFeatures run) throws Exception {
        Consumer<byte[]> first = run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared));
        run.send(numbers(0, 5));
        List<MessageId> kept = ids(receive(first, 5));
        Consumer<byte[]> second = run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared));
        first.close();
        List<Message<byte[]>> messages = receive(second, 5);
        Stream<MessageId> received = ids(messages).stream().sorted();
        return Program.object("received", texts(messages).stream().sorted().toList(), "same_ids", received.toList().equals(kept));
    }

    /** Receives that are cancelled lose nothing: neither those that wait, nor those to which a message comes just then. */
    private static Map<String, Object> cancelledReceive(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        List<CompletableFuture<Message<byte[]>>> waiting = Stream.generate(consumer::receiveAsync).limit(WAITING).toList();
        boolean cancelled = waiting.stream().allMatch(receive -> receive.cancel(true));
        run.send(numbers(0, WAITING));
        List<String> received = texts(receiveAndAcknowledge(consumer, WAITING));
        TreeSet<Integer> seen = new TreeSet<>();
        try (Producer<byte[]> producer = run.producer()) {
            for (int i = 0; i < RACING; i++) {
                CompletableFuture<Message<byte[]>> receive = consumer.receiveAsync();
                producer.sendAsync(bytes(i));
                Thread.sleep(i % 3);
                if (!receive.cancel(true)) {
                    seen.add(number(receive.join()));
                    consumer.acknowledge(receive.join());
                }
            }
            producer.flush();
        }
        rest(consumer).forEach(message -> seen.add(number(message)));
        consumer.close();
        rest(run.consumer()).forEach(message -> seen.add(number(message))); // a cancelled receive may have had it
        return Program.object("cancelled", cancelled, "received", received, "racing", List.copyOf(seen).equals(numbers(0, RACING)));
    }
}
