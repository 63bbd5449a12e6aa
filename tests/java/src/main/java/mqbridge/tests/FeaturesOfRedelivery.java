package mqbridge.tests;

import static mqbridge.tests.PulsarFeatures.bytes;
import static mqbridge.tests.PulsarFeatures.number;
import static mqbridge.tests.PulsarFeatures.numbers;
import static mqbridge.tests.PulsarFeatures.receive;
import static mqbridge.tests.PulsarFeatures.receiveAndAcknowledge;
import static mqbridge.tests.PulsarFeatures.rest;
import static mqbridge.tests.PulsarFeatures.text;
import static mqbridge.tests.PulsarFeatures.texts;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.SubscriptionType;

/** Acknowledgements, redelivery and delayed delivery. */
final class FeaturesOfRedelivery {
    static final Map<String, PulsarFeatures.Feature> ALL = Map.ofEntries(
            Map.entry("ack_individual", FeaturesOfRedelivery::ackIndividual),
            Map.entry("ack_cumulative", FeaturesOfRedelivery::ackCumulative),
            Map.entry("ack_cumulative_in_batch", FeaturesOfRedelivery::ackCumulativeInBatch),
            Map.entry("ack_batch_index", FeaturesOfRedelivery::ackBatchIndex),
            Map.entry("ack_whole_batch", FeaturesOfRedelivery::ackWholeBatch),
            Map.entry("ack_receipts", FeaturesOfRedelivery::ackReceipts),
            Map.entry("negative_acks", FeaturesOfRedelivery::negativeAcks),
            Map.entry("negative_ack_in_batch", FeaturesOfRedelivery::negativeAckInBatch),
            Map.entry("dead_letters", FeaturesOfRedelivery::deadLetters),
            Map.entry("retry_letters", FeaturesOfRedelivery::retryLetters),
            Map.entry("delayed_shared", FeaturesOfRedelivery::delayedShared),
            Map.entry("delayed_exclusive", FeaturesOfRedelivery::delayedExclusive),
            Map.entry("delayed_ack", FeaturesOfRedelivery::delayedAck));

    private static final int NACK_MS = 100;
    private static final int RETRY_MS = 500;
    private static final int DELAY_S = 3;
    private static final int MAX_REDELIVERIES = 2;
    private static final PulsarFeatures.ConsumerSettings SHARED = builder -> builder.subscriptionType(SubscriptionType.Shared);

    private FeaturesOfRedelivery() {}

    /** Acknowledges the messages with even numbers and closes the consumer. */
    private static void acknowledgeEven(Consumer<byte[]> consumer, int count) throws Exception {
        for (Message<byte[]> message : receive(consumer, count)) {
            if (number(message) % 2 == 0) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
    }

    private static Map<String, Object> ackIndividual(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        run.send(numbers(0, 10));
        acknowledgeEven(consumer, 10);
        return Program.object("again", texts(rest(run.consumer())));
    }

    private static Map<String, Object> ackCumulative(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        run.send(numbers(0, 10));
        consumer.acknowledgeCumulative(receive(consumer, 5).get(4));
        consumer.close();
        return Program.object("again", texts(rest(run.consumer())));
    }

    private static Map<String, Object> ackCumulativeInBatch(PulsarFeatures run) throws Exception {
        PulsarFeatures.ConsumerSettings settings = builder -> builder.enableBatchIndexAcknowledgment(true);
        Consumer<byte[]> consumer = run.consumer(settings);
        run.sendBatch(numbers(0, 10));
        consumer.acknowledgeCumulative(receive(consumer, 5).get(4));
        consumer.close();
        return Program.object("again", texts(rest(run.consumer(settings))));
    }

    private static Map<String, Object> ackBatchIndex(PulsarFeatures run) throws Exception {
        Map<String, Object> again = Program.object();
        for (SubscriptionType type : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared)) {
            PulsarFeatures.ConsumerSettings settings = builder -> builder.subscriptionType(type).enableBatchIndexAcknowledgment(true);
            Consumer<byte[]> consumer = run.consumer(type.name(), settings);
            run.sendBatch(type.name(), numbers(0, 10), builder -> {});
            acknowledgeEven(consumer, 10);
            again.put(type.name(), texts(rest(run.consumer(type.name(), settings))));
        }
        return again;
    }

    /** Without batch index acknowledgement, a batch comes again as a whole until all its messages are acknowledged. */
    private static Map<String, Object> ackWholeBatch(PulsarFeatures run) throws Exception {
        PulsarFeatures.ConsumerSettings whole = builder -> builder.enableBatchIndexAcknowledgment(false);
        Consumer<byte[]> consumer = run.consumer(whole);
        run.sendBatch(numbers(0, 5));
        for (Message<byte[]> message : receive(consumer, 5).subList(0, 3)) {
            consumer.acknowledge(message);
        }
        consumer.close();
        consumer = run.consumer(whole);
        List<String> again = texts(rest(consumer));
        consumer.close();
        return Program.object("again", again, "left", texts(rest(run.consumer(whole))));
    }

    /** A confirmed acknowledgement is stored: the consumer's connection is lost before it could send it at its close. */
    private static Map<String, Object> ackReceipts(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.isAckReceiptEnabled(true));
        run.send(numbers(0, 5));
        int confirmed = 0;
        for (Message<byte[]> message : receive(consumer, 5).subList(0, 3)) {
            consumer.acknowledgeAsync(message).get();
            confirmed++;
        }
        run.client.shutdown();
        run.client = run.newClient();
        return Program.object("confirmed", confirmed, "again", texts(rest(run.consumer())));
    }

    private static Map<String, Object> negativeAcks(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder ->
                builder.subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(NACK_MS, TimeUnit.MILLISECONDS));
        run.send(numbers(0, 4));
        Map<String, List<Integer>> counts = new TreeMap<>();
        for (int i = 0; i < 4 + 2 + 2; i++) {
            Message<byte[]> message = receive(consumer, 1).get(0);
            counts.computeIfAbsent(text(message), value -> new ArrayList<>()).add(message.getRedeliveryCount());
            if (number(message) % 2 == 1 && message.getRedeliveryCount() < 2) {
                consumer.negativeAcknowledge(message);
            } else {
                consumer.acknowledge(message);
            }
        }
        return Program.object("counts", counts, "left", texts(rest(consumer)));
    }

    /** With batch index acknowledgement, only the rejected message of a batch comes again. */
    private static Map<String, Object> negativeAckInBatch(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(NACK_MS, TimeUnit.MILLISECONDS).enableBatchIndexAcknowledgment(true));
        run.sendBatch(numbers(0, 5));
        Map<String, List<Integer>> counts = new TreeMap<>();
        for (Message<byte[]> message : receive(consumer, 5)) {
            counts.computeIfAbsent(text(message), value -> new ArrayList<>()).add(message.getRedeliveryCount());
            if (number(message) == 2) {
                consumer.negativeAcknowledge(message);
            } else {
                consumer.acknowledge(message);
            }
        }
        Message<byte[]> again = receiveAndAcknowledge(consumer, 1).get(0);
        counts.get(text(again)).add(again.getRedeliveryCount());
        return Program.object("counts", counts, "left", texts(rest(consumer)));
    }

    private static Map<String, Object> deadLetters(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(NACK_MS, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(MAX_REDELIVERIES).build()));
        Consumer<byte[]> dead = run.consumer("-s-DLQ", builder -> {});
        run.send(numbers(0, 3));
        Map<String, List<Integer>> counts = new TreeMap<>();
        for (int i = 0; i < 3 + MAX_REDELIVERIES; i++) {
            Message<byte[]> message = receive(consumer, 1).get(0);
            counts.computeIfAbsent(text(message), value -> new ArrayList<>()).add(message.getRedeliveryCount());
            if (number(message) == 1) {
                consumer.negativeAcknowledge(message);
            } else {
                consumer.acknowledge(message);
            }
        }
        Message<byte[]> letter = deadLetter(consumer, dead);
        consumer.close();
        return Program.object("counts", counts, "dead", text(letter), "real_topic", letter.getProperty("REAL_TOPIC").equals(run.topic("")),
                "left", texts(rest(run.consumer(SHARED))));
    }

    /** Receives a dead letter. Its sender forwards it when it meets the message while the application receives. */
    private static Message<byte[]> deadLetter(Consumer<byte[]> consumer, Consumer<byte[]> dead) throws Exception {
        if (consumer.receive(NACK_MS * 10, TimeUnit.MILLISECONDS) != null) {
            throw new IllegalStateException("a message that was to be a dead letter was received");
        }
        return receive(dead, 1).get(0);
    }

    private static Map<String, Object> retryLetters(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.subscriptionType(SubscriptionType.Shared).enableRetry(true)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(MAX_REDELIVERIES).build()));
        Consumer<byte[]> dead = run.consumer("-s-DLQ", builder -> {});
        run.send(numbers(0, 1));
        List<String> tries = new ArrayList<>();
        for (int i = 0; i <= MAX_REDELIVERIES; i++) {
            Message<byte[]> message = receive(consumer, 1).get(0);
            tries.add(message.getProperty("RECONSUMETIMES"));
            consumer.reconsumeLater(message, RETRY_MS, TimeUnit.MILLISECONDS);
        }
        Message<byte[]> letter = deadLetter(consumer, dead);
        return Program.object("tries", tries, "dead", text(letter), "left", texts(rest(consumer)));
    }

    private static Producer<byte[]> sendDelayed(PulsarFeatures run, long seconds) throws Exception {
        Producer<byte[]> producer = run.producer();
        producer.newMessage().value(bytes("delayed")).deliverAfter(seconds, TimeUnit.SECONDS).send();
        return producer;
    }

    private static Map<String, Object> delayedShared(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(SHARED);
        sendDelayed(run, DELAY_S).send(bytes("now"));
        return Program.object("received", texts(receive(consumer, 2)));
    }

    private static Map<String, Object> delayedExclusive(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        sendDelayed(run, TimeUnit.HOURS.toSeconds(1)).send(bytes("now"));
        return Program.object("received", texts(receive(consumer, 2)));
    }

    /** A delayed message does not hold the acknowledgement of later ones. */
    private static Map<String, Object> delayedAck(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(SHARED);
        sendDelayed(run, DELAY_S);
        run.send(numbers(0, 5));
        List<String> first = texts(receiveAndAcknowledge(consumer, 5));
        consumer.close();
        consumer = run.consumer(SHARED);
        List<String> again = new ArrayList<>(texts(receiveAndAcknowledge(consumer, 1)));
        again.addAll(texts(rest(consumer)));
        return Program.object("first", first, "again", again);
    }
}
