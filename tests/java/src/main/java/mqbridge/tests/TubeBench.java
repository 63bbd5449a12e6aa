package mqbridge.tests;

import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVER_RECEIVE_OVERFLOW;
import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVICE_UNAVAILABLE;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;

/**
 * What this client costs: messages sent asynchronously to all partitions, a request each, or packs pulled by several threads and confirmed.
 *
 * <pre>
 * --master host:port  --topic T  --mode produce|consume  --messages N  --size 1000  --warmup 0  --idle 30
 * --window 1000       unanswered sends      --threads 8  that pull      --group G
 * </pre>
 */
public final class TubeBench {
    private static final long HEARTBEAT_MS = 2000;
    private static final long READY_WAIT_MS = 500;
    // The SDK sleeps this long between looks for an idle partition.
    private static final long READY_SLICE_MS = 1;

    private TubeBench() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            BridgeProgress progress = new BridgeProgress(args);
            if (args.text("mode").equals("produce")) {
                produce(args, progress);
            } else {
                consume(args, progress);
            }
            progress.end();
        });
    }

    private static void produce(Args args, BridgeProgress progress) throws Exception {
        long messages = args.number("messages", 1);
        String topic = args.text("topic");
        byte[] body = new Body(args.count("size", 1000)).of(0);
        Semaphore window = new Semaphore(args.count("window", 1000));
        TubeClientConfig config = new TubeClientConfig(args.text("master"));
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        args.end();
        MessageProducer producer = new TubeSingleSessionFactory(config).createProducer();
        producer.publish(topic);
        BenchCount count = new BenchCount(progress);
        for (long i = 0; i < messages; i++) {
            count.sending(i);
            window.acquire();
            new Sent(producer, new Message(topic, body), window, count).send();
        }
        count.await(messages);
    }

    private static void consume(Args args, BridgeProgress progress) throws Exception {
        ConsumerConfig config = new ConsumerConfig(args.text("master"), args.text("group"));
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        config.setHeartbeatPeriodMs(HEARTBEAT_MS);
        config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS);
        config.setPullConsumeReadyChkSliceMs(READY_SLICE_MS);
        config.setPullConfirmInLocal(true);
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        String topic = args.text("topic");
        int threads = args.count("threads", 8);
        args.end();
        PullMessageConsumer consumer = new TubeSingleSessionFactory(config).createPullConsumer(config);
        consumer.subscribe(topic, null).completeSubscribe();
        AtomicLong bytes = new AtomicLong();
        List<Thread> pulling = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> pull(consumer, bytes, progress), "pull-" + i);
            thread.start();
            pulling.add(thread);
        }
        for (Thread thread : pulling) {
            thread.join();
        }
    }

    private static void pull(PullMessageConsumer consumer, AtomicLong bytes, BridgeProgress progress) {
        try {
            while (!progress.over()) {
                ConsumerResult pack = consumer.getMessage();
                if (!pack.isSuccess()) {
                    if (!TErrCodeConstants.IGNORE_ERROR_SET.contains(pack.getErrCode())) {
                        System.err.println("get: " + pack.getErrCode() + " " + pack.getErrMsg());
                    }
                    continue;
                }
                int messages = pack.getMessageList().size();
                if (messages > 0) {
                    progress.arrived();
                }
                long size = 0;
                for (Message message : pack.getMessageList()) {
                    size += message.getData().length;
                }
                bytes.addAndGet(size);
                if (consumer.confirmConsume(pack.getConfirmContext(), true).isSuccess() && messages > 0) {
                    progress.stored(messages);
                }
            }
        } catch (Throwable thrown) {
            progress.failed(thrown);
        }
    }

    /** A message on its way; one that the broker has no room for is sent again. */
    private record Sent(MessageProducer producer, Message message, Semaphore window, BenchCount count) implements MessageSentCallback {
        void send() throws TubeClientException, InterruptedException {
            producer.sendMessage(message, this);
        }

        @Override
        public void onMessageSent(MessageSentResult result) {
            int code = result.getErrCode();
            if (code == SERVER_RECEIVE_OVERFLOW || code == SERVICE_UNAVAILABLE) {
                again();
                return;
            }
            window.release();
            count.answered(result.isSuccess() ? null : new IllegalStateException(code + " " + result.getErrMsg()));
        }

        private void again() {
            try {
                send();
            } catch (TubeClientException refused) {
                onException(refused);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public void onException(Throwable thrown) {
            window.release();
            count.answered(thrown);
        }
    }
}
