package mqbridge.tests;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A push consumer that keeps its messages, and the queues that it has by the last rebalance. */
final class RocketMember {
    /** What a listener does with a message; an exception counts as a refusal. */
    interface Reaction {
        boolean accepts(MessageExt message);
    }

    private static final int SUSPEND_MS = 200;
    /** 1 s. */
    private static final int SHORTEST_DELAY = 1;

    final DefaultMQPushConsumer consumer;
    final List<MessageExt> messages = new CopyOnWriteArrayList<>();
    /** Counts of earlier deliveries with which each message came, by its text. An orderly consumer raises that of the same object. */
    final Map<String, List<Integer>> tries = new ConcurrentSkipListMap<>();
    volatile Set<MessageQueue> queues = Set.of();
    private final RocketFeatures run;
    private Reaction reaction = message -> true;

    RocketMember(RocketFeatures run, String group) {
        this(run, new DefaultMQPushConsumer(group));
    }

    RocketMember(RocketFeatures run, DefaultMQPushConsumer consumer) {
        this.run = run;
        this.consumer = run.configured(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(new Recorder());
        consumer.registerMessageListener((MessageListenerConcurrently) this::concurrently);
    }

    /** Delegates to the strategy that is the default, and notes what it assigns. */
    private final class Recorder implements AllocateMessageQueueStrategy {
        private final AllocateMessageQueueStrategy averagely = new AllocateMessageQueueAveragely();

        @Override
        public List<MessageQueue> allocate(String group, String id, List<MessageQueue> all, List<String> ids) {
            List<MessageQueue> mine = averagely.allocate(group, id, all, ids);
            if (all.get(0).getTopic().equals(run.topic)) {
                queues = Set.copyOf(mine);
            }
            return mine;
        }

        @Override
        public String getName() {
            return averagely.getName();
        }
    }

    RocketMember reacting(Reaction newReaction) {
        reaction = newReaction;
        return this;
    }

    RocketMember orderly() {
        consumer.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) ->
                accepts(batch) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        return this;
    }

    RocketMember start(String tags) throws Exception {
        consumer.subscribe(run.topic, tags);
        consumer.start();
        return this;
    }

    RocketMember start() throws Exception {
        return start("*");
    }

    private ConsumeConcurrentlyStatus concurrently(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        context.setDelayLevelWhenNextConsume(SHORTEST_DELAY);
        return accepts(batch) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    private boolean accepts(List<MessageExt> batch) {
        for (MessageExt message : batch) {
            tries.computeIfAbsent(RocketFeatures.text(message), text -> new CopyOnWriteArrayList<>()).add(message.getReconsumeTimes());
            messages.add(message);
        }
        return batch.stream().allMatch(reaction::accepts);
    }

    void awaitQueues(int count) throws Exception {
        RocketFeatures.until(count + " queues", () -> queues.size() == count);
    }

    void await(int count) throws Exception {
        RocketFeatures.until(count + " messages", () -> messages.size() >= count);
    }

    /** Waits for so many messages, and then until no further one is expected. */
    List<MessageExt> receive(int count) throws Exception {
        await(count);
        Thread.sleep(RocketFeatures.QUIET_MS);
        return messages;
    }

    /** Stores the offsets, and waits until the server has those of the last messages. */
    static void commit(Collection<RocketMember> members) throws Exception {
        for (RocketMember member : members) {
            member.consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            OffsetStore offsets = member.consumer.getDefaultMQPushConsumerImpl().getOffsetStore();
            for (MessageQueue queue : member.queues) {
                RocketFeatures.until("the offset of " + queue, () -> {
                    member.consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
                    return offsets.readOffset(queue, ReadOffsetType.READ_FROM_STORE) >= member.consumer.maxOffset(queue);
                });
            }
        }
    }

    void close() {
        consumer.shutdown();
    }
}
