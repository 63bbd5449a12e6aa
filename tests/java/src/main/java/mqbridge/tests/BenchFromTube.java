package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;

/** Threads that pull, with the pauses that the SDK makes as shipped: 400 ms for a partition that had nothing. */
final class BenchFromTube implements BenchSource {
    private static final int THREADS = 8;
    private static final long HEARTBEAT_MS = 2000;
    private static final long READY_WAIT_MS = 500;
    private static final long READY_SLICE_MS = 1;

    private final PullMessageConsumer consumer;
    private final List<Thread> pulling = new ArrayList<>();
    private volatile boolean closing;

    BenchFromTube(Args args, Receiver receiver) throws TubeClientException {
        ConsumerConfig config = new ConsumerConfig(args.text("from-master", args.text("master")), args.text("group"));
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        config.setHeartbeatPeriodMs(HEARTBEAT_MS);
        config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS);
        config.setPullConsumeReadyChkSliceMs(READY_SLICE_MS);
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        consumer = new TubeSingleSessionFactory(config).createPullConsumer(config);
        consumer.subscribe(args.text("from-topic"), null).completeSubscribe();
        for (int i = 0; i < THREADS; i++) {
            Thread thread = new Thread(() -> pull(receiver), "pull-" + i);
            thread.start();
            pulling.add(thread);
        }
    }

    private void pull(Receiver receiver) {
        while (!closing) {
            try {
                ConsumerResult pack = consumer.getMessage();
                if (pack.isSuccess()) {
                    pack.getMessageList().forEach(message -> receiver.received(message.getData()));
                    consumer.confirmConsume(pack.getConfirmContext(), true);
                }
            } catch (TubeClientException thrown) {
                System.err.println("get: " + thrown);
            }
        }
    }

    @Override
    public void close() throws Exception {
        closing = true;
        for (Thread thread : pulling) {
            thread.join();
        }
        Tube.shutdown(consumer);
    }
}
