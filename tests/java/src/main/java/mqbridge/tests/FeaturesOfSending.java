package mqbridge.tests;

import static mqbridge.tests.PulsarFeatures.bytes;
import static mqbridge.tests.PulsarFeatures.ids;
import static mqbridge.tests.PulsarFeatures.numbers;
import static mqbridge.tests.PulsarFeatures.oneBatch;
import static mqbridge.tests.PulsarFeatures.receive;
import static mqbridge.tests.PulsarFeatures.receiveAndAcknowledge;
import static mqbridge.tests.PulsarFeatures.rest;
import static mqbridge.tests.PulsarFeatures.text;
import static mqbridge.tests.PulsarFeatures.texts;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;

/** What a producer sends arrives as it was sent. */
final class FeaturesOfSending {
    static final Map<String, PulsarFeatures.Feature> ALL = Map.ofEntries(
            Map.entry("single", FeaturesOfSending::single),
            Map.entry("batched", FeaturesOfSending::batched),
            Map.entry("message_ids", FeaturesOfSending::messageIds),
            Map.entry("compression", FeaturesOfSending::compression),
            Map.entry("chunked", FeaturesOfSending::chunked),
            Map.entry("encryption", FeaturesOfSending::encryption),
            Map.entry("producer_names", FeaturesOfSending::producerNames),
            Map.entry("deduplication", FeaturesOfSending::deduplication),
            Map.entry("many", FeaturesOfSending::many),
            Map.entry("exclusive_producer", FeaturesOfSending::exclusiveProducer),
            Map.entry("schema", FeaturesOfSending::schema),
            Map.entry("too_large", FeaturesOfSending::tooLarge));

    private static final Map<String, String> PROPERTIES = Map.of("plain", "1", "empty", "", "text", "ä€");
    private static final long EVENT_TIME = 1_700_000_000_123L;
    private static final List<CompressionType> CODECS =
            List.of(CompressionType.LZ4, CompressionType.ZLIB, CompressionType.ZSTD, CompressionType.SNAPPY);
    private static final int LARGE = 12_000_000;
    private static final int TOO_LARGE = 6_000_000;
    private static final int MANY = 5000;
    private static final int CHUNK_PERIOD = 251;

    private FeaturesOfSending() {}

    private static Map<String, Object> describe(Message<byte[]> message) {
        return Program.object("value", text(message), "properties", message.getProperties(), "key", message.getKey(),
                "ordering_key", message.hasOrderingKey() ? new String(message.getOrderingKey(), StandardCharsets.UTF_8) : null,
                "event_time", message.getEventTime(), "has_publish_time", message.getPublishTime() > 0,
                "redeliveries", message.getRedeliveryCount());
    }

    private static List<Message<byte[]>> sendDescribed(PulsarFeatures run, PulsarFeatures.ProducerSettings settings) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> producer = run.producer("", settings);
        producer.newMessage().value(bytes(0)).properties(PROPERTIES).key("k").orderingKey(bytes("o")).eventTime(EVENT_TIME).sendAsync();
        producer.newMessage().value(bytes(1)).sendAsync();
        producer.flush();
        return receive(consumer, 2);
    }

    private static long entries(List<Message<byte[]>> messages) {
        return ids(messages).stream().map(MessageIdAdv.class::cast).map(id -> id.getLedgerId() + ":" + id.getEntryId()).distinct().count();
    }

    private static Map<String, Object> single(PulsarFeatures run) throws Exception {
        List<Message<byte[]>> messages = sendDescribed(run, builder -> {});
        return Program.object("messages", messages.stream().map(FeaturesOfSending::describe).toList(), "entries", entries(messages));
    }

    private static Map<String, Object> batched(PulsarFeatures run) throws Exception {
        List<Message<byte[]>> messages = sendDescribed(run, builder -> oneBatch(builder, 2));
        return Program.object("messages", messages.stream().map(FeaturesOfSending::describe).toList(), "entries", entries(messages),
                "indexes", ids(messages).stream().map(id -> ((MessageIdAdv) id).getBatchIndex()).toList());
    }

    private static Map<String, Object> messageIds(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        List<MessageId> sent = new ArrayList<>(run.send(numbers(0, 3)));
        sent.addAll(run.sendBatch(numbers(3, 6)));
        sent.addAll(run.send(numbers(6, 8)));
        List<MessageId> received = ids(receive(consumer, 8));
        List<MessageId> sorted = new ArrayList<>(received);
        Collections.sort(sorted);
        List<MessageId> again = new ArrayList<>();
        for (MessageId id : received) {
            again.add(MessageId.fromByteArray(id.toByteArray()));
        }
        return Program.object("receipts_are_ids", sent.equals(received), "ascending", sorted.equals(received), "bytes_make_ids", again.equals(received));
    }

    private static Map<String, Object> compression(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        Map<String, Object> received = Program.object();
        for (CompressionType codec : CODECS) {
            run.send("", List.of("x".repeat(10_000)), builder -> builder.compressionType(codec));
            run.sendBatch("", Collections.nCopies(10, "x".repeat(100)), builder -> builder.compressionType(codec));
            received.put(codec.name(), receive(consumer, 11).stream().map(message -> text(message).chars().filter(c -> c == 'x').count()).toList());
        }
        return received;
    }

    private static Map<String, Object> chunked(PulsarFeatures run) throws Exception {
        byte[] payload = new byte[LARGE];
        for (int i = 0; i < LARGE; i++) {
            payload[i] = (byte) (i % CHUNK_PERIOD);
        }
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> producer = run.producer("", builder -> builder.enableChunking(true));
        producer.send(bytes("before"));
        producer.newMessage().value(payload).properties(PROPERTIES).send();
        producer.send(bytes("after"));
        List<Message<byte[]>> messages = receiveAndAcknowledge(consumer, 3);
        consumer.close();
        Message<byte[]> large = messages.get(1);
        return Program.object("size", large.size(), "same", Arrays.equals(payload, large.getData()), "properties", large.getProperties(),
                "around", List.of(text(messages.get(0)), text(messages.get(2))), "left", rest(run.consumer()).size());
    }

    private static Map<String, Object> encryption(PulsarFeatures run) throws Exception {
        CryptoKeyReader reader = new Keys(Path.of(run.keys));
        Consumer<byte[]> withKey = run.consumer(builder -> builder.subscriptionName("with").cryptoKeyReader(reader));
        Consumer<byte[]> withoutKey = run.consumer(builder -> builder.subscriptionName("without").cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME));
        run.sendBatch("", Collections.nCopies(3, "secret"), builder -> builder.addEncryptionKey("features").cryptoKeyReader(reader));
        Message<byte[]> unread = receive(withoutKey, 1).get(0);
        return Program.object("with_key", texts(receive(withKey, 3)),
                "hidden", !new String(unread.getData(), StandardCharsets.ISO_8859_1).contains("secret"),
                "key_names", unread.getEncryptionCtx().orElseThrow().getKeys().keySet());
    }

    /** The two files of the folder. The SDK's own reader of files would take them by URL. */
    private record Keys(Path folder) implements CryptoKeyReader {
        private static final long serialVersionUID = 1;

        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return read("public.pem");
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return read("private.pem");
        }

        private EncryptionKeyInfo read(String file) {
            try {
                return new EncryptionKeyInfo(Files.readAllBytes(folder.resolve(file)), Map.of());
            } catch (IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
    }

    private static Map<String, Object> producerNames(PulsarFeatures run) throws Exception {
        String name = "named-" + run.topic("");
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> named = run.producer("", builder -> builder.producerName(name).initialSequenceId(100));
        String second = "accepted";
        try {
            run.producer("", builder -> builder.producerName(name));
        } catch (PulsarClientException.ProducerBusyException e) {
            second = "busy";
        }
        for (int number : numbers(0, 3)) {
            named.send(bytes(number));
        }
        List<Producer<byte[]>> others = List.of(run.producer(), run.producer());
        for (Producer<byte[]> other : others) {
            other.send(bytes("x"));
        }
        List<Message<byte[]>> messages = receive(consumer, 5);
        List<String> generated = messages.subList(3, 5).stream().map(Message::getProducerName).toList();
        return Program.object("names", messages.subList(0, 3).stream().map(message -> message.getProducerName().equals(name)).toList(),
                "sequence_ids", messages.subList(0, 3).stream().map(Message::getSequenceId).toList(),
                "generated", generated.equals(others.stream().map(Producer::getProducerName).toList())
                        && generated.stream().distinct().count() == 2 && !generated.contains(""),
                "second", second, "last_sequence_id", named.getLastSequenceId());
    }

    private static Map<String, Object> deduplication(PulsarFeatures run) throws Exception {
        PulsarFeatures.ProducerSettings named = builder -> builder.producerName("named-" + run.topic(""));
        Consumer<byte[]> consumer = run.consumer();
        try (Producer<byte[]> producer = run.producer("", named)) {
            for (int number : List.of(1, 2, 3, 2, 3, 4)) {
                producer.newMessage().value(bytes(number)).sequenceId(number).send();
            }
        }
        Producer<byte[]> producer = run.producer("", named);
        long last = producer.getLastSequenceId();
        for (int number : List.of(3, 4, 5)) {
            producer.newMessage().value(bytes(number)).sequenceId(number).send();
        }
        return Program.object("received", texts(rest(consumer)), "last_sequence_id", last);
    }

    /** More messages than fit into the queue of the consumer, in batches as the client makes them. */
    private static Map<String, Object> many(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer(builder -> builder.receiverQueueSize(100));
        Producer<byte[]> producer = run.producer("", builder -> builder.enableBatching(true).maxPendingMessages(MANY));
        for (int number : numbers(0, MANY)) {
            producer.sendAsync(bytes(number));
        }
        producer.flush();
        List<Integer> received = receiveAndAcknowledge(consumer, MANY).stream().map(PulsarFeatures::number).toList();
        consumer.close();
        return Program.object("received", received.size(), "in_order", received.equals(numbers(0, MANY)), "left", texts(rest(run.consumer())));
    }

    private static Map<String, Object> exclusiveProducer(PulsarFeatures run) throws Exception {
        PulsarFeatures.ProducerSettings exclusive = builder -> builder.accessMode(ProducerAccessMode.Exclusive);
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> first = run.producer("", exclusive);
        first.send(bytes("first"));
        String second = "accepted";
        try {
            run.producer();
        } catch (PulsarClientException.ProducerFencedException | PulsarClientException.ProducerBusyException e) {
            second = "refused";
        }
        first.close();
        run.producer("", exclusive).send(bytes("third"));
        return Program.object("second", second, "after_close", texts(receive(consumer, 2)));
    }

    /** A value with a schema. */
    static final class Named {
        public String name;
    }

    private static Map<String, Object> schema(PulsarFeatures run) throws Exception {
        Consumer<Named> consumer = run.client.newConsumer(Schema.JSON(Named.class)).topic(run.topic("")).subscriptionName("s").subscribe();
        Producer<Named> producer = run.client.newProducer(Schema.JSON(Named.class)).topic(run.topic("")).create();
        for (String name : List.of("a", "b")) {
            Named value = new Named();
            value.name = name;
            producer.send(value);
        }
        List<Message<Named>> messages = List.of(consumer.receive(30, TimeUnit.SECONDS), consumer.receive(30, TimeUnit.SECONDS));
        String other = "accepted";
        try {
            run.client.newProducer(Schema.INT64).topic(run.topic("")).create();
        } catch (PulsarClientException.IncompatibleSchemaException e) {
            other = "refused";
        }
        return Program.object("received", messages.stream().map(message -> message.getValue().name).toList(), "other_schema", other,
                "has_version", messages.stream().allMatch(message -> message.getSchemaVersion() != null && message.getSchemaVersion().length > 0));
    }

    private static Map<String, Object> tooLarge(PulsarFeatures run) throws Exception {
        Consumer<byte[]> consumer = run.consumer();
        Producer<byte[]> producer = run.producer();
        String error = null;
        try {
            producer.send(new byte[TOO_LARGE]);
        } catch (PulsarClientException.InvalidMessageException e) {
            error = "too large";
        }
        producer.send(bytes("after"));
        return Program.object("error", error, "received", texts(receive(consumer, 1)));
    }
}
