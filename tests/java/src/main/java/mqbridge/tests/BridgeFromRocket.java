package mqbridge.tests;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The push consumer with an orderly listener: one call per queue at a time, with what several pulls have brought (a broker as shipped
 * answers each with 32 messages), and the offset goes on when all of it is stored.
 */
final class BridgeFromRocket implements BridgeSource {
    // The most that the client takes.
    private static final int PACK_MESSAGES = 1024;
    // Per queue: a pack in work and one that is being pulled.
    private static final int CACHED_MESSAGES = 4 * PACK_MESSAGES;
    private static final int CACHED_MB = 4;
    private static final long AGAIN_MS = 200;
    private static final int LOOK_MS = 10;

    private final BridgeProgress progress;
    private final DefaultMQPushConsumer consumer;
    private final String topic;
    private final String origin;
    private final Map<MessageQueue, Integer> partitions = new ConcurrentHashMap<>();

    BridgeFromRocket(Args args, BridgeProgress progress) {
        this.progress = progress;
        topic = args.text("topic");
        origin = args.text("cluster", "rocket") + "|" + topic + "|";
        consumer = Rocket.configured(
                new DefaultMQPushConsumer(args.text("group"), Rocket.hook(args), new AllocateMessageQueueAveragely()), args);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(PACK_MESSAGES);
        consumer.setConsumeMessageBatchMaxSize(PACK_MESSAGES);
        consumer.setPullThresholdForQueue(CACHED_MESSAGES);
        consumer.setPullThresholdSizeForQueue(CACHED_MB);
        int threads = args.count("threads", 3);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
    }

    @Override
    public void run(BridgeSink sink) throws Exception {
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeOrderlyContext context) -> bridge(messages, context, sink));
        consumer.start();
        List<MessageQueue> queues = consumer.fetchSubscribeMessageQueues(topic).stream().sorted().toList();
        for (int i = 0; i < queues.size(); i++) {
            partitions.put(queues.get(i), i);
        }
        while (!progress.over()) {
            Thread.sleep(LOOK_MS);
        }
        progress.end();
        consumer.shutdown();
    }

    private ConsumeOrderlyStatus bridge(List<MessageExt> messages, ConsumeOrderlyContext context, BridgeSink sink) {
        try {
            Integer partition = partitions.get(context.getMessageQueue());
            if (partition != null && !progress.over() && store(messages, context.getMessageQueue(), sink.pack(partition))) {
                progress.stored(messages.size());
                return ConsumeOrderlyStatus.SUCCESS;
            }
        } catch (Exception thrown) {
            progress.failed(thrown);
        }
        context.setSuspendCurrentQueueTimeMillis(AGAIN_MS);
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
    }

    private boolean store(List<MessageExt> messages, MessageQueue queue, BridgeSink.Pack out) throws Exception {
        progress.arrived();
        String place = origin + queue.getBrokerName() + ":" + queue.getQueueId() + "|";
        for (MessageExt message : messages) {
            map(message, out);
            out.property(BridgeMapping.ORIGIN, place + message.getQueueOffset());
        }
        return out.store();
    }

    private static void map(MessageExt message, BridgeSink.Pack out) throws Exception {
        out.message(message.getBody());
        long eventTime = message.getBornTimestamp();
        String key = null;
        for (Map.Entry<String, String> pair : message.getProperties().entrySet()) {
            String name = pair.getKey();
            switch (name) {
                case MessageConst.PROPERTY_TAGS -> out.type(pair.getValue());
                case MessageConst.PROPERTY_KEYS -> out.keys(pair.getValue());
                case Rocket.SHARDING_KEY -> key = pair.getValue();
                case BridgeMapping.EVENT_TIME -> eventTime = Long.parseLong(pair.getValue());
                case BridgeMapping.ORIGIN -> { }
                default -> {
                    if (!MessageConst.STRING_HASH_SET.contains(name)) {
                        out.property(name, pair.getValue());
                    }
                }
            }
        }
        if (key != null) {
            out.key(key);
        }
        out.eventTime(eventTime);
    }
}
