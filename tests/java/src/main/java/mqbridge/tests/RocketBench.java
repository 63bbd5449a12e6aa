package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What this client costs: batches sent asynchronously to all queues in turn, or the push consumer with a concurrent listener.
 *
 * <pre>
 * --name-servers host:port  --topic T  --mode produce|consume  --messages N  --size 1000  --warmup 0  --idle 30
 * --batch-messages 100      --window 16  unanswered batches    --threads 8               --group G
 * </pre>
 */
public final class RocketBench {
    // The most that the client takes.
    private static final int PACK_MESSAGES = 1024;
    private static final int CACHED_MESSAGES = 4 * PACK_MESSAGES;
    private static final int CACHED_MB = 4;
    private static final int LOOK_MS = 10;

    private RocketBench() {}

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            BridgeProgress progress = new BridgeProgress(args);
            if (args.text("mode").equals("produce")) {
                produce(args, progress);
            } else {
                consume(args, progress);
            }
        });
    }

    private static void produce(Args args, BridgeProgress progress) throws Exception {
        long messages = args.number("messages", 1);
        int batch = args.count("batch-messages", 100);
        String topic = args.text("topic");
        byte[] body = new Body(args.count("size", 1000)).of(0);
        Semaphore window = new Semaphore(args.count("window", 16));
        DefaultMQProducer producer = Rocket.producer(new DefaultMQProducer("bench"), args);
        args.end();
        producer.start();
        BenchCount count = new BenchCount(progress);
        for (long sent = 0; sent < messages; sent += batch) {
            count.sending(sent);
            window.acquire();
            List<Message> list = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                list.add(new Message(topic, body));
            }
            producer.send(list, new Answer(batch, window, count));
        }
        count.await(messages);
        progress.end();
        producer.shutdown();
    }

    private record Answer(int batch, Semaphore window, BenchCount count) implements SendCallback {
        @Override
        public void onSuccess(SendResult result) {
            window.release();
            count.answered(batch, null);
        }

        @Override
        public void onException(Throwable thrown) {
            window.release();
            count.answered(batch, thrown);
        }
    }

    private static void consume(Args args, BridgeProgress progress) throws Exception {
        DefaultMQPushConsumer consumer = Rocket.configured(new DefaultMQPushConsumer(args.text("group")), args);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(PACK_MESSAGES);
        consumer.setConsumeMessageBatchMaxSize(PACK_MESSAGES);
        consumer.setPullThresholdForQueue(CACHED_MESSAGES);
        consumer.setPullThresholdSizeForQueue(CACHED_MB);
        int threads = args.count("threads", 8);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.subscribe(args.text("topic"), "*");
        args.end();
        AtomicLong bytes = new AtomicLong();
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
            progress.arrived();
            long size = 0;
            for (MessageExt message : messages) {
                size += message.getBody().length;
            }
            bytes.addAndGet(size);
            progress.stored(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (!progress.over()) {
            Thread.sleep(LOOK_MS);
        }
        progress.end();
        consumer.shutdown();
    }
}
