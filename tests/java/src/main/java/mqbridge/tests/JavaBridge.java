package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * The comparison of the benchmark: TubeMQ to Pulsar, at least once, as one would write it with the two official clients.
 *
 * <p>Each pull thread takes a pack of a partition that nobody else holds, sends all of it without waiting, then waits until Pulsar has
 * stored every message, and only then confirms the pack; with a thread per partition no partition waits for another. The end of a
 * pack flushes the batch: until the pack is confirmed nothing can follow that would fill it.
 *
 * <pre>
 * --master host:port  --topic T       --group G       --cluster tube     name in mqbridge.origin
 * --url pulsar://...  --target T                      partition p goes to T-partition-p
 * --messages 0        --idle 30       stop after so many messages, or seconds without one (0: never)
 * --warmup 0                          messages that the final figures leave out
 * --threads 3         --consumers 1   pull threads, shared out over so many consumers of the group
 * --confirm local     or commit: with the next get, or by a request of its own
 * --linger-ms 2       --batch-messages 1000  --batch-bytes 524288  --compression NONE
 * </pre>
 */
public final class JavaBridge {
    private static final long HEARTBEAT_MS = 2000;
    private static final long READY_WAIT_MS = 500;
    // The SDK sleeps this long between looks for an idle partition.
    private static final long READY_SLICE_MS = 1;
    // More than the largest pack can hold, so that a full queue is a slow target and not a large pack.
    private static final int MAX_PENDING = 10_000;

    private final Idle idle;
    private final BridgeFigures figures;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final String origin;
    private final String target;
    private final ProducerBuilder<byte[]> builder;
    private final Map<Integer, Producer<byte[]>> producers = new ConcurrentHashMap<>();

    private JavaBridge(Args args, PulsarClient client) {
        idle = new Idle(args);
        figures = new BridgeFigures(args.number("warmup", 0));
        origin = args.text("cluster", "tube") + "|" + args.text("topic") + "|";
        target = args.text("target");
        builder = client.newProducer(Schema.BYTES)
                .enableBatching(true)
                .batchingMaxPublishDelay(args.number("linger-ms", 2), TimeUnit.MILLISECONDS)
                .batchingMaxMessages(args.count("batch-messages", 1000))
                .batchingMaxBytes(args.count("batch-bytes", 512 << 10))
                .compressionType(CompressionType.valueOf(args.text("compression", "NONE")))
                .maxPendingMessages(MAX_PENDING)
                .blockIfQueueFull(true);
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            ConsumerConfig config = config(args);
            int threads = args.count("threads", 3);
            int consumers = args.count("consumers", 1);
            String topic = args.text("topic");
            try (PulsarClient client = PulsarClient.builder().serviceUrl(args.text("url")).build()) {
                JavaBridge bridge = new JavaBridge(args, client);
                args.end();
                bridge.run(config, topic, threads, consumers);
            }
        });
    }

    private static ConsumerConfig config(Args args) {
        ConsumerConfig config = new ConsumerConfig(args.text("master"), args.text("group"));
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        config.setHeartbeatPeriodMs(HEARTBEAT_MS);
        config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS);
        config.setPullConsumeReadyChkSliceMs(READY_SLICE_MS);
        config.setPullConfirmInLocal(args.text("confirm", "local").equals("local"));
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        return config;
    }

    private void run(ConsumerConfig config, String topic, int threads, int consumers) throws Exception {
        TubeMultiSessionFactory factory = new TubeMultiSessionFactory(config);
        List<PullMessageConsumer> opened = new ArrayList<>();
        for (int i = 0; i < consumers; i++) {
            PullMessageConsumer consumer = factory.createPullConsumer(config);
            consumer.subscribe(topic, null).completeSubscribe();
            opened.add(consumer);
        }
        List<Thread> pulling = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            PullMessageConsumer consumer = opened.get(i % consumers);
            Thread thread = new Thread(() -> pull(consumer), "pull-" + i);
            thread.start();
            pulling.add(thread);
        }
        for (Thread thread : pulling) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException("the bridge stopped", failure.get());
        }
        figures.last();
        for (PullMessageConsumer consumer : opened) {
            shutdown(consumer);
        }
        factory.shutdown();
    }

    private static void shutdown(PullMessageConsumer consumer) throws Exception {
        try {
            consumer.shutdown();
        } catch (Exception | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new IllegalStateException("the consumer did not shut down", thrown);
        }
    }

    private void pull(PullMessageConsumer consumer) {
        try {
            while (!idle.over() && failure.get() == null) {
                ConsumerResult pack = consumer.getMessage();
                if (pack.isSuccess()) {
                    bridge(consumer, pack);
                } else if (!TErrCodeConstants.IGNORE_ERROR_SET.contains(pack.getErrCode())) {
                    System.err.println("get: " + pack.getErrCode() + " " + pack.getErrMsg());
                }
            }
        } catch (Throwable thrown) {
            failure.compareAndSet(null, thrown);
        }
    }

    private void bridge(PullMessageConsumer consumer, ConsumerResult pack) throws Exception {
        int count = pack.getMessageList().size();
        if (count > 0) {
            figures.arrived();
        }
        boolean stored = store(pack);
        ConsumerResult confirmed = consumer.confirmConsume(pack.getConfirmContext(), stored);
        if (!confirmed.isSuccess()) {
            System.err.println("not confirmed, will come again: " + confirmed.getErrCode() + " " + confirmed.getErrMsg());
        } else if (stored && count > 0) {
            figures.stored(count);
            idle.saw(count);
        }
    }

    /** Sends the pack and waits until it is stored; false when a message was not, and the pack has to come again. */
    private boolean store(ConsumerResult pack) {
        int partition = pack.getPeerInfo().getPartitionId();
        Producer<byte[]> producer = producers.computeIfAbsent(partition, this::producer);
        BridgeMapping mapping = new BridgeMapping(origin + pack.getPartitionKey() + "|" + pack.getCurrOffset() + ":");
        List<CompletableFuture<MessageId>> sends = new ArrayList<>(pack.getMessageList().size());
        for (Message message : pack.getMessageList()) {
            TypedMessageBuilder<byte[]> out = producer.newMessage().value(message.getData());
            mapping.apply(message.getAttribute(), out);
            sends.add(out.sendAsync());
        }
        producer.flushAsync();
        try {
            sends.forEach(CompletableFuture::join);
            return true;
        } catch (CompletionException notStored) {
            System.err.println("not stored, will come again: " + notStored.getCause());
            return false;
        }
    }

    private Producer<byte[]> producer(int partition) {
        return builder.clone().topic(target + "-partition-" + partition).createAsync().join();
    }
}
