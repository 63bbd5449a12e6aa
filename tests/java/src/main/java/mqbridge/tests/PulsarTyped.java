package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.SchemaInfo;

/**
 * Produces or consumes messages with a schema: texts {@code text N}, or orders {@code {"id": N, "name": "order N"}}.
 *
 * <p>A consumer prints the schema that the topic's registry has for each message, and the message as that schema reads it.
 *
 * <pre>
 * --url pulsar://host:port  --topic T      --messages N (1)
 * --produce STRING|JSON                    or else it consumes, as a subscription of its own
 * --as AUTO|STRING|JSON                    how it consumes: with whatever schema there is, or with its own
 * --idle 30                                seconds without a message before it stops
 * </pre>
 */
public final class PulsarTyped {
    /** What the schema is made from; its fields are read and written by reflection. */
    public static final class Order {
        public long id;
        public String name;
    }

    private static final int RECEIVE_WAIT_MS = 200;

    private PulsarTyped() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            String kind = args.text("produce", null);
            try (PulsarClient client = PulsarClient.builder().serviceUrl(args.text("url")).build()) {
                if (kind == null) {
                    consume(client, args);
                } else if (kind.equals("JSON")) {
                    produce(client.newProducer(Schema.JSON(Order.class)).topic(args.text("topic")).create(), args, PulsarTyped::order);
                } else {
                    produce(client.newProducer(Schema.STRING).topic(args.text("topic")).create(), args, number -> "text " + number);
                }
            }
        });
    }

    private interface Maker<T> {
        T make(long number);
    }

    private static Order order(long number) {
        Order order = new Order();
        order.id = number;
        order.name = "order " + number;
        return order;
    }

    private static <T> void produce(Producer<T> producer, Args args, Maker<T> maker) throws Exception {
        long messages = args.number("messages", 1);
        args.end();
        for (long number = 0; number < messages; number++) {
            producer.newMessage().value(maker.make(number)).send();
        }
        producer.close();
        Program.print(Program.object("messages", messages));
    }

    private static void consume(PulsarClient client, Args args) throws Exception {
        String kind = args.text("as", "AUTO");
        String topic = args.text("topic");
        Idle idle = new Idle(args);
        args.end();
        Schema<?> schema = switch (kind) {
            case "STRING" -> Schema.STRING;
            case "JSON" -> Schema.JSON(Order.class);
            default -> Schema.AUTO_CONSUME();
        };
        try (Consumer<?> consumer = client.newConsumer(schema).topic(topic).subscriptionName("typed-" + kind)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            while (!idle.over()) {
                Message<?> message = consumer.receive(RECEIVE_WAIT_MS, TimeUnit.MILLISECONDS);
                if (message != null) {
                    Program.print(line(message));
                    consumer.acknowledge(message);
                    idle.saw(1);
                }
            }
        }
        Program.print(Program.object("messages", idle.seen()));
    }

    private static Map<String, Object> line(Message<?> message) {
        byte[] version = message.getSchemaVersion();
        Map<String, Object> line = Program.object("version", version == null ? null : Base64.getEncoder().encodeToString(version));
        SchemaInfo said = message.getReaderSchema().map(Schema::getSchemaInfo).orElse(null);
        line.put("type", said == null ? null : said.getType().name());
        line.put("definition", said == null ? null : new String(said.getSchema(), StandardCharsets.UTF_8));
        line.put("value", plain(message.getValue()));
        return line;
    }

    private static Object plain(Object value) {
        if (value instanceof GenericRecord record) {
            if (record.getFields().isEmpty()) {
                return record.getNativeObject();
            }
            Map<String, Object> fields = new TreeMap<>();
            for (Field field : record.getFields()) {
                fields.put(field.getName(), record.getField(field));
            }
            return fields;
        }
        if (value instanceof Order order) {
            return new TreeMap<>(Map.of("id", order.id, "name", order.name));
        }
        return value;
    }
}
