package mqbridge.tests;

import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
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
 * <p>A line's {@code done} is what becomes of its message: acknowledged, refused, or kept without a word; {@code at} is when, in
 * microseconds since the epoch.
 *
 * <p>Properties come as the SDK shows them: of a message in a batch sorted by key and with one value per key, whatever was sent.
 *
 * <pre>
 * --url pulsar://host:port  --topic T    --subscription S              with TLS and credentials: see PulsarClients
 * --type Exclusive|Shared|Failover|Key_Shared                    --name NAME   of the consumer
 * --messages 0              --idle 30    stop after so many messages, or seconds without one (0: never)
 * --until FILE                           stop as soon as there is such a file
 * --digest                               sha256 and size instead of the body
 * --refuse 0                             messages are refused that were delivered again less often than this
 * --keep-from 0                          from the message of this number on, all are kept (0: none)
 * --batch-index-ack         --receiver-queue 1000
 * --live                                 a line can be read before its message is acknowledged
 * --receipts                             a line {@code subscribed} at the start, and a line {@code confirmed} with the id, when the
 *                                        server has confirmed an acknowledgement
 * --private-key FILE                     PEM, with which encrypted messages are read
 * </pre>
 */
public final class PulsarConsume {
    private static final int RECEIVE_WAIT_MS = 200;
    private static final int AGAIN_MS = 100;
    private static final int RECEIPT_GROUP_MS = 20;

    private final Idle idle;
    private final boolean digest;
    private final boolean live;
    private final boolean receipts;
    private final long refuse;
    private final long keepFrom;

    private PulsarConsume(Args args) {
        idle = new Idle(args);
        digest = args.flag("digest");
        live = args.flag("live");
        receipts = args.flag("receipts");
        refuse = args.number("refuse", 0);
        keepFrom = args.number("keep-from", 0);
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            try (PulsarClient client = PulsarClients.open(args)) {
                ConsumerBuilder<byte[]> builder = consumer(client, args);
                PulsarConsume consume = new PulsarConsume(args);
                args.end();
                try (Consumer<byte[]> consumer = builder.subscribe()) {
                    if (consume.receipts) {
                        Program.printNow(Program.object("subscribed", consumer.getSubscription()));
                    }
                    consume.run(consumer);
                }
                Program.printNow(Program.object("messages", consume.idle.seen()));
            }
        });
    }

    private static ConsumerBuilder<byte[]> consumer(PulsarClient client, Args args) {
        ConsumerBuilder<byte[]> builder = client.newConsumer(Schema.BYTES).topic(args.text("topic"))
                .subscriptionName(args.text("subscription"))
                .subscriptionType(SubscriptionType.valueOf(args.text("type", "Exclusive")))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(AGAIN_MS, TimeUnit.MILLISECONDS)
                .enableBatchIndexAcknowledgment(args.flag("batch-index-ack"))
                .receiverQueueSize(args.count("receiver-queue", 1000));
        if (args.flag("receipts")) {
            builder.isAckReceiptEnabled(true).acknowledgmentGroupTime(RECEIPT_GROUP_MS, TimeUnit.MILLISECONDS);
        }
        String privateKey = args.text("private-key", null);
        if (privateKey != null) {
            builder.defaultCryptoKeyReader(Path.of(privateKey).toUri().toString());
        }
        String name = args.text("name", null);
        return name == null ? builder : builder.consumerName(name);
    }

    private void run(Consumer<byte[]> consumer) throws PulsarClientException {
        while (!idle.over()) {
            Message<byte[]> message = consumer.receive(RECEIVE_WAIT_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                Program.flush();
                continue;
            }
            boolean kept = keepFrom > 0 && idle.seen() >= keepFrom;
            boolean refused = message.getRedeliveryCount() < refuse;
            Map<String, Object> line = line(message, digest);
            line.put("done", kept ? "kept" : refused ? "refused" : "acknowledged");
            line.put("at", now());
            Program.print(line);
            if (live) {
                Program.flush();
            }
            if (refused && !kept) {
                consumer.negativeAcknowledge(message);
            } else if (!kept && receipts) {
                MessageId id = message.getMessageId();
                consumer.acknowledgeAsync(id).thenRun(() -> confirmed(id));
            } else if (!kept) {
                consumer.acknowledge(message);
            }
            idle.saw(1);
        }
    }

    private static void confirmed(MessageId id) {
        Program.printNow(Program.object("confirmed", describe(id), "at", now()));
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
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
