package mqbridge.tests;

import static mqbridge.tests.RocketFeatures.bytes;
import static mqbridge.tests.RocketFeatures.number;
import static mqbridge.tests.RocketFeatures.numbers;
import static mqbridge.tests.RocketFeatures.sorted;
import static mqbridge.tests.RocketFeatures.text;
import static mqbridge.tests.RocketFeatures.texts;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** How push consumers get messages, and get them again. */
final class RocketFeaturesOfDelivery {
    static final Map<String, RocketFeatures.Feature> ALL = Map.of(
            "push", RocketFeaturesOfDelivery::push, "retry", RocketFeaturesOfDelivery::retry,
            "dead_letters", RocketFeaturesOfDelivery::deadLetters, "orderly", RocketFeaturesOfDelivery::orderly,
            "orderly_suspended", RocketFeaturesOfDelivery::orderlySuspended, "tags", RocketFeaturesOfDelivery::tags,
            "flow_control", RocketFeaturesOfDelivery::flowControl);

    private static final int MESSAGES = 40;
    private static final int SLOW_MESSAGES = 60;
    private static final int CACHED = 4;
    private static final int SLOW_MS = 10;

    private RocketFeaturesOfDelivery() {}

    /** Messages that are there when the consumer starts, and some that wake its waiting pulls. */
    private static Map<String, Object> push(RocketFeatures run) throws Exception {
        run.send(numbers(0, MESSAGES / 2));
        RocketMember member = run.member().start();
        member.await(MESSAGES / 2);
        run.send(numbers(MESSAGES / 2, MESSAGES));
        return Program.object("all_once", RocketFeatures.isRange(member.receive(MESSAGES), MESSAGES));
    }

    private static Map<String, Object> retry(RocketFeatures run) throws Exception {
        RocketMember member = run.member().reacting(message -> {
            if (text(message).equals("thrown") && message.getReconsumeTimes() == 0) {
                throw new IllegalStateException("the first delivery fails, as it must");
            }
            return !text(message).equals("refused") || message.getReconsumeTimes() == 2;
        }).start();
        DefaultMQProducer producer = run.producer();
        for (String value : List.of("accepted", "refused", "thrown")) {
            Message message = new Message(run.topic, "tag", "key", bytes(value));
            message.putUserProperty("plain", "1");
            producer.send(message);
        }
        List<MessageExt> messages = member.receive(6);
        List<MessageExt> refused = messages.stream().filter(each -> text(each).equals("refused")).toList();
        return Program.object("tries", member.tries, "topics", messages.stream().allMatch(each -> each.getTopic().equals(run.topic)),
                "ids", refused.stream().map(MessageExt::getMsgId).distinct().count(),
                "retry_topics", refused.stream().map(each -> run.topic.equals(each.getProperty("RETRY_TOPIC"))).toList(),
                "tags", refused.stream().map(MessageExt::getTags).toList(), "keys", refused.stream().map(MessageExt::getKeys).toList(),
                "properties", refused.stream().map(each -> each.getUserProperty("plain")).toList());
    }

    private static Map<String, Object> deadLetters(RocketFeatures run) throws Exception {
        RocketMember member = run.member().reacting(message -> text(message).equals("accepted"));
        member.consumer.setMaxReconsumeTimes(1);
        member.start();
        DefaultMQProducer producer = run.producer();
        for (String value : List.of("accepted", "refused")) {
            producer.send(new Message(run.topic, "tag", "key", bytes(value)));
        }
        List<MessageExt> dead = run.read("%DLQ%" + run.group, 1);
        member.receive(3);
        return Program.object("tries", member.tries, "dead", texts(dead), "tags", dead.get(0).getTags(), "keys", dead.get(0).getKeys(),
                "retry_topic", run.topic.equals(dead.get(0).getProperty("RETRY_TOPIC")));
    }

    private static Map<String, Object> orderly(RocketFeatures run) throws Exception {
        run.send(numbers(0, MESSAGES));
        List<MessageExt> messages = run.member().orderly().start().receive(MESSAGES);
        return Program.object("all_once", RocketFeatures.isRange(messages, MESSAGES), "in_order", RocketFeatures.inOrder(messages));
    }

    /** A refused message comes again, before those behind it. */
    private static Map<String, Object> orderlySuspended(RocketFeatures run) throws Exception {
        run.send(numbers(0, 5), 0);
        AtomicInteger refusals = new AtomicInteger();
        RocketMember member = run.member().orderly().reacting(each -> number(each) != 2 || refusals.incrementAndGet() > 2);
        return Program.object("received", texts(member.start().receive(7)), "tries", member.tries.get("2"));
    }

    private static Map<String, Object> tags(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        for (String tag : List.of("a", "b", "c", "a")) {
            producer.send(new Message(run.topic, tag, bytes(tag)));
        }
        producer.send(run.message("none"));
        Map<String, Object> outcome = new TreeMap<>();
        List<RocketMember> members = new ArrayList<>();
        for (String tags : List.of("a || b", "c", "*")) {
            members.add(run.member("_" + members.size()).start(tags));
        }
        outcome.put("a || b", sorted(members.get(0).receive(3)));
        outcome.put("c", sorted(members.get(1).receive(1)));
        outcome.put("*", sorted(members.get(2).receive(5)));
        return outcome;
    }

    /** The consumer stops pulling while it has as many messages as it may keep. */
    private static Map<String, Object> flowControl(RocketFeatures run) throws Exception {
        run.send(numbers(0, SLOW_MESSAGES), 0);
        RocketMember member = run.member().reacting(message -> {
            try {
                Thread.sleep(SLOW_MS);
            } catch (InterruptedException stopped) {
                return false;
            }
            return true;
        });
        member.consumer.setPullThresholdForQueue(CACHED);
        member.consumer.setPullBatchSize(CACHED);
        member.consumer.setConsumeThreadMin(1);
        member.consumer.setConsumeThreadMax(1);
        List<MessageExt> messages = member.start().receive(SLOW_MESSAGES);
        return Program.object("all_once", RocketFeatures.isRange(messages, SLOW_MESSAGES), "in_order", RocketFeatures.inOrder(messages));
    }
}
