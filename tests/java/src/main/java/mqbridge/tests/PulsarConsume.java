package mqbridge.tests;

import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumes a Pulsar topic, partitioned or not, from the earliest message, and acknowledges each message after its line is printed.
 *
 * <p>Properties come as the SDK shows them: of a message in a batch sorted by key and with one value per key, whatever was sent.
 *
 * <pre>
 * --url pulsar://host:port  --topic T    --subscription S
 * --type Exclusive|Shared|Failover|Key_Shared
 * --messages 0              --idle 30    stop after so many messages, or seconds without one (0: never)
 * --digest                               sha256 and size instead of the body
 * </pre>
 */
public final class PulsarConsume {
    private static final int RECEIVE_WAIT_MS = 200;

    private PulsarConsume() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            try (PulsarClient client = PulsarClient.builder().serviceUrl(args.text("url")).build()) {
                ConsumerBuilder<byte[]> builder = client.newConsumer(Schema.BYTES).topic(args.text("topic"))
                        .subscriptionName(args.text("subscription"))
                        .subscriptionType(SubscriptionType.valueOf(args.text("type", "Exclusive")))
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
                Idle idle = new Idle(args);
                boolean digest = args.flag("digest");
                args.end();
                try (Consumer<byte[]> consumer = builder.subscribe()) {
                    consume(consumer, idle, digest);
                }
                Program.printNow(Program.object("messages", idle.seen()));
            }
        });
    }

    private static void consume(Consumer<byte[]> consumer, Idle idle, boolean digest) throws PulsarClientException {
        while (!idle.over()) {
            Message<byte[]> message = consumer.receive(RECEIVE_WAIT_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                Program.flush();
                continue;
            }
            Program.print(line(message, digest));
            consumer.acknowledge(message);
            idle.saw(1);
        }
    }

    private static Map<String, Object> line(Message<byte[]> message, boolean digest) {
        Map<String, Object> line = Program.object("topic", message.getTopicName(), "id", describe(message.getMessageId()),
                "key", message.getKey(), "keyBytes", message.hasKey() ? base64(message.getKeyBytes()) : null,
                "orderingKey", message.hasOrderingKey() ? base64(message.getOrderingKey()) : null,
                "properties", new TreeMap<>(message.getProperties()), "eventTime", message.getEventTime(), "publishTime", message.getPublishTime(),
                "producer", message.getProducerName(), "sequenceId", message.getSequenceId(),
                "redeliveryCount", message.getRedeliveryCount());
        byte[] value = message.getValue();
        line.put("null", value == null);
        Body.describe(line, value == null ? new byte[0] : value, digest);
        return line;
    }

    /** A message id by its parts; batch is -1 for a message that is alone in its entry. */
    static Map<String, Object> describe(MessageId id) {
        MessageIdAdv parts = (MessageIdAdv) id;
        return Program.object("ledger", parts.getLedgerId(), "entry", parts.getEntryId(), "partition", parts.getPartitionIndex(),
                "batch", parts.getBatchIndex(), "batchSize", parts.getBatchSize());
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
