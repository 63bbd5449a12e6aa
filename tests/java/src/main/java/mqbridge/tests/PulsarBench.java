package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SizeUnit;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * What this client costs: one message after the other into batches over all partitions, or all partitions read and acknowledged, each by
 * a consumer and a thread of its own.
 *
 * <pre>
 * --url pulsar://host:port  --topic T  --mode produce|consume  --messages N  --size 1000  --warmup 0  --idle 30
 * --batch-messages 1000  --batch-bytes 131072  --linger-ms 10  --pending-mb 16  --properties 0  --single (without batches)
 * --type Failover  --individual (acknowledge message by message)  --ack-ms 100 (acknowledgements of so much time go together)
 * </pre>
 */
public final class PulsarBench {
    private static final int PACK_MESSAGES = 1000;
    private static final int PACK_BYTES = 2 << 20;
    private static final int PACK_WAIT_MS = 20;

    private PulsarBench() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            BridgeProgress progress = new BridgeProgress(args);
            PulsarClient client = PulsarClient.builder().serviceUrl(args.text("url"))
                    .memoryLimit(args.number("pending-mb", 16), SizeUnit.MEGA_BYTES).build();
            if (args.text("mode").equals("produce")) {
                produce(client, args, progress);
            } else {
                consume(client, args, progress);
            }
            progress.end();
            client.close();
        });
    }

    private static void produce(PulsarClient client, Args args, BridgeProgress progress) throws Exception {
        long messages = args.number("messages", 1);
        byte[] body = new Body(args.count("size", 1000)).of(0);
        int properties = args.count("properties", 0);
        BenchCount count = new BenchCount(progress);
        try (Producer<byte[]> producer = client.newProducer(Schema.BYTES).topic(args.text("topic"))
                .enableBatching(!args.flag("single")).batchingMaxMessages(args.count("batch-messages", 1000)).batchingMaxBytes(args.count("batch-bytes", 128 << 10))
                .batchingMaxPublishDelay(args.number("linger-ms", 10), TimeUnit.MILLISECONDS)
                .blockIfQueueFull(true).create()) {
            args.end();
            for (long i = 0; i < messages; i++) {
                count.sending(i);
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(body);
                for (int k = 0; k < properties; k++) {
                    message.property("property-" + k, "value-" + i % 1000);
                }
                message.sendAsync().whenComplete((id, thrown) -> count.answered(thrown));
            }
            producer.flush();
            count.await(messages);
        }
    }

    private static void consume(PulsarClient client, Args args, BridgeProgress progress) throws Exception {
        String topic = args.text("topic");
        SubscriptionType type = SubscriptionType.valueOf(args.text("type", "Failover"));
        boolean individual = args.flag("individual");
        long ackMs = args.number("ack-ms", 100);
        args.end();
        AtomicLong bytes = new AtomicLong();
        List<Thread> receiving = new ArrayList<>();
        for (String partition : client.getPartitionsForTopic(topic, false).get()) {
            Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(partition).subscriptionName("bench-java-" + System.nanoTime())
                    .subscriptionType(type).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .receiverQueueSize(2 * PACK_MESSAGES).acknowledgmentGroupTime(ackMs, TimeUnit.MILLISECONDS)
                    .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(PACK_MESSAGES).maxNumBytes(PACK_BYTES)
                            .timeout(PACK_WAIT_MS, TimeUnit.MILLISECONDS).build())
                    .subscribe();
            Thread thread = new Thread(() -> receive(consumer, individual, bytes, progress), partition);
            thread.start();
            receiving.add(thread);
        }
        for (Thread thread : receiving) {
            thread.join();
        }
    }

    private static void receive(Consumer<byte[]> consumer, boolean individual, AtomicLong bytes, BridgeProgress progress) {
        try {
            while (!progress.over()) {
                Messages<byte[]> messages = consumer.batchReceive();
                if (messages.size() == 0) {
                    continue;
                }
                progress.arrived();
                long size = 0;
                Message<byte[]> last = null;
                for (Message<byte[]> message : messages) {
                    size += message.getValue().length;
                    last = message;
                }
                bytes.addAndGet(size);
                if (individual) {
                    for (Message<byte[]> message : messages) {
                        consumer.acknowledgeAsync(message);
                    }
                } else {
                    consumer.acknowledgeCumulative(last);
                }
                progress.stored(messages.size());
            }
        } catch (Throwable thrown) {
            progress.failed(thrown);
        }
    }
}
