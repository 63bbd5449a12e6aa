package mqbridge.tests;

import static mqbridge.tests.RocketFeatures.bytes;
import static mqbridge.tests.RocketFeatures.numbers;
import static mqbridge.tests.RocketFeatures.sorted;
import static mqbridge.tests.RocketFeatures.texts;
import static mqbridge.tests.RocketFeatures.until;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask for messages. */
final class RocketFeaturesOfPulling {
    static final Map<String, RocketFeatures.Feature> ALL = Map.of(
            "lite_subscribe", RocketFeaturesOfPulling::liteSubscribe, "lite_assign", RocketFeaturesOfPulling::liteAssign,
            "pull", RocketFeaturesOfPulling::pull, "offsets", RocketFeaturesOfPulling::offsets);

    private static final int POLL_MS = 100;
    private static final int MESSAGES = 12;

    private RocketFeaturesOfPulling() {}

    private static DefaultLitePullConsumer lite(RocketFeatures run) {
        DefaultLitePullConsumer consumer = run.configured(new DefaultLitePullConsumer(run.group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        return consumer;
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        until(count + " polled messages", () -> messages.addAll(consumer.poll(POLL_MS)) && messages.size() >= count
                || messages.size() >= count);
        messages.addAll(consumer.poll(RocketFeatures.QUIET_MS));
        return messages;
    }

    @SuppressWarnings("deprecation")  // 5.x calls commitSync() commit(), which 4.9 does not have
    private static List<MessageExt> subscribed(RocketFeatures run, int count) throws Exception {
        DefaultLitePullConsumer consumer = lite(run);
        consumer.subscribe(run.topic, "*");
        consumer.start();
        List<MessageExt> messages = poll(consumer, count);
        consumer.commitSync();
        consumer.shutdown();
        return messages;
    }

    private static Map<String, Object> liteSubscribe(RocketFeatures run) throws Exception {
        run.send(numbers(0, MESSAGES));
        List<MessageExt> first = subscribed(run, MESSAGES);
        run.send(List.of("a", "b", "c", "d"));
        return Program.object("all_once", RocketFeatures.isRange(first, MESSAGES), "again", sorted(subscribed(run, 4)));
    }

    private static Map<String, Object> liteAssign(RocketFeatures run) throws Exception {
        run.send(numbers(0, 5), 0);
        DefaultLitePullConsumer consumer = lite(run);
        consumer.start();
        MessageQueue queue = consumer.fetchMessageQueues(run.topic).stream().filter(each -> each.getQueueId() == 0).findAny().orElseThrow();
        consumer.assign(List.of(queue));
        Map<String, Object> outcome = Program.object("first", texts(poll(consumer, 5)));
        consumer.seek(queue, 3);
        outcome.put("after_seek", texts(poll(consumer, 2)));
        consumer.seekToBegin(queue);
        outcome.put("from_begin", texts(poll(consumer, 5)));
        consumer.seekToEnd(queue);
        run.send(List.of("later"), 0);
        outcome.put("from_end", texts(poll(consumer, 1)));
        consumer.shutdown();
        return outcome;
    }

    private static MessageQueue queue(DefaultMQPullConsumer consumer, RocketFeatures run, int id) throws Exception {
        return consumer.fetchSubscribeMessageQueues(run.topic).stream().filter(each -> each.getQueueId() == id).findAny().orElseThrow();
    }

    private static List<Object> described(PullResult result) {
        List<MessageExt> messages = result.getMsgFoundList();
        return List.of(result.getPullStatus().name(), messages == null ? List.of() : texts(messages), result.getNextBeginOffset());
    }

    private static Map<String, Object> pull(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        DefaultMQPullConsumer consumer = run.pullConsumer("");
        MessageQueue queue = queue(consumer, run, 1);
        for (int value : numbers(0, 5)) {
            producer.send(new Message(run.topic, value % 2 == 0 ? "even" : "odd", bytes(value)), queue);
        }
        until("all messages", () -> consumer.pull(queue, "*", 0, 32).getNextBeginOffset() == 5);
        return Program.object("from_2", described(consumer.pull(queue, "*", 2, 2)), "odd", described(consumer.pull(queue, "odd", 0, 32)),
                "unmatched", described(consumer.pull(queue, "none", 0, 32)), "at_end", described(consumer.pull(queue, "*", 5, 32)),
                "beyond", described(consumer.pull(queue, "*", 9, 32)),
                "empty_queue", described(consumer.pull(queue(consumer, run, 2), "*", 0, 32)));
    }

    private static Map<String, Object> offsets(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        DefaultMQPullConsumer consumer = run.pullConsumer("");
        MessageQueue queue = queue(consumer, run, 1);
        MessageQueue empty = queue(consumer, run, 2);
        for (int value : numbers(0, 5)) {
            producer.send(run.message(value), queue);
            Thread.sleep(20);
        }
        until("all messages", () -> consumer.maxOffset(queue) == 5);
        List<MessageExt> messages = consumer.pull(queue, "*", 0, 32).getMsgFoundList();
        long third = messages.get(3).getStoreTimestamp();
        consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, 3, false);
        return Program.object("min", consumer.minOffset(queue), "max", consumer.maxOffset(queue), "at_time", consumer.searchOffset(queue, third),
                "before_time", consumer.searchOffset(queue, third - 1000), "after_time", consumer.searchOffset(queue, third + 60_000),
                "empty_max", consumer.maxOffset(empty), "committed", consumer.fetchConsumeOffset(queue, true),
                "not_committed", consumer.fetchConsumeOffset(empty, true));
    }
}
