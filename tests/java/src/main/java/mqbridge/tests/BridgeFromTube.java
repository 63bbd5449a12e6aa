package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;

/** Pull threads, each with a pack of a partition that nobody else holds; the pack is confirmed when all of it is stored. */
final class BridgeFromTube implements BridgeSource {
    private static final long HEARTBEAT_MS = 2000;
    private static final long READY_WAIT_MS = 500;
    // The SDK sleeps this long between looks for an idle partition.
    private static final long READY_SLICE_MS = 1;

    private final BridgeProgress progress;
    private final ConsumerConfig config;
    private final String topic;
    private final int threads;
    private final int consumers;
    private final String origin;

    BridgeFromTube(Args args, BridgeProgress progress) {
        this.progress = progress;
        config = config(args);
        topic = args.text("topic");
        threads = args.count("threads", 3);
        consumers = args.count("consumers", 1);
        origin = args.text("cluster", "tube") + "|" + topic + "|";
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

    @Override
    public void run(BridgeSink sink) throws Exception {
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
            Thread thread = new Thread(() -> pull(consumer, sink), "pull-" + i);
            thread.start();
            pulling.add(thread);
        }
        for (Thread thread : pulling) {
            thread.join();
        }
        progress.end();
        for (PullMessageConsumer consumer : opened) {
            Tube.shutdown(consumer);
        }
        factory.shutdown();
    }

    private void pull(PullMessageConsumer consumer, BridgeSink sink) {
        try {
            BridgeMapping mapping = new BridgeMapping();
            while (!progress.over()) {
                ConsumerResult pack = consumer.getMessage();
                if (pack.isSuccess()) {
                    bridge(consumer, pack, mapping, sink);
                } else if (!TErrCodeConstants.IGNORE_ERROR_SET.contains(pack.getErrCode())) {
                    System.err.println("get: " + pack.getErrCode() + " " + pack.getErrMsg());
                }
            }
        } catch (Throwable thrown) {
            progress.failed(thrown);
        }
    }

    private void bridge(PullMessageConsumer consumer, ConsumerResult pack, BridgeMapping mapping, BridgeSink sink) throws Exception {
        int count = pack.getMessageList().size();
        if (count > 0) {
            progress.arrived();
        }
        boolean stored = store(pack, mapping, sink.pack(pack.getPeerInfo().getPartitionId()));
        ConsumerResult confirmed = consumer.confirmConsume(pack.getConfirmContext(), stored);
        if (!confirmed.isSuccess()) {
            System.err.println("not confirmed, will come again: " + confirmed.getErrCode() + " " + confirmed.getErrMsg());
        } else if (stored && count > 0) {
            progress.stored(count);
        }
    }

    private boolean store(ConsumerResult pack, BridgeMapping mapping, BridgeSink.Pack out) throws Exception {
        String place = origin + pack.getPartitionKey() + "|" + pack.getCurrOffset() + ":";
        int index = 0;
        for (Message message : pack.getMessageList()) {
            out.message(message.getData());
            if (message.getAttribute() != null) {
                mapping.apply(message.getAttribute(), out);
            }
            out.property(BridgeMapping.ORIGIN, place + index++);
        }
        return out.store();
    }
}
