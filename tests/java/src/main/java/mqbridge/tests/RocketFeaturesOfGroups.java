package mqbridge.tests;

import static mqbridge.tests.RocketFeatures.numbers;
import static mqbridge.tests.RocketFeatures.sorted;
import static mqbridge.tests.RocketFeatures.until;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Members of groups: which queues they get, and where they begin. */
final class RocketFeaturesOfGroups {
    static final Map<String, RocketFeatures.Feature> ALL = Map.of(
            "rebalance", RocketFeaturesOfGroups::rebalance, "broadcast", RocketFeaturesOfGroups::broadcast,
            "resume", RocketFeaturesOfGroups::resume, "starts", RocketFeaturesOfGroups::starts,
            "start_last_empty", RocketFeaturesOfGroups::startLastEmpty, "two_groups", RocketFeaturesOfGroups::twoGroups);

    private static final int QUEUES = 4;
    private static final int ROUND = 20;
    private static final long HOUR_MS = 3_600_000;

    private RocketFeaturesOfGroups() {}

    /** Two members, a third that joins, and one that leaves, each time when all offsets are stored: each message comes once. */
    private static Map<String, Object> rebalance(RocketFeatures run) throws Exception {
        List<RocketMember> members = new ArrayList<>(List.of(run.member().start(), run.member().start()));
        List<RocketMember> all = new ArrayList<>(members);
        List<Object> sizes = new ArrayList<>();
        sizes.add(round(run, members, all, 0));
        members.add(run.member().start());
        all.add(members.get(2));
        sizes.add(round(run, members, all, 1));
        members.remove(0).close();
        sizes.add(round(run, members, all, 2));
        return Program.object("queues", sizes, "all_once", RocketFeatures.isRange(messages(all), 3 * ROUND),
                "all_members", all.stream().noneMatch(member -> member.messages.isEmpty()));
    }

    private static List<MessageExt> messages(Collection<RocketMember> members) {
        return members.stream().flatMap(member -> member.messages.stream()).toList();
    }

    private static List<Integer> round(RocketFeatures run, List<RocketMember> members, List<RocketMember> all, int number) throws Exception {
        until("distinct queues", () -> shared(members));
        run.send(numbers(number * ROUND, (number + 1) * ROUND));
        until("messages of round " + number, () -> messages(all).size() >= (number + 1) * ROUND);
        RocketMember.commit(members);
        return members.stream().map(member -> member.queues.size()).sorted().toList();
    }

    /** True if each queue has one member, and each member a queue. */
    private static boolean shared(List<RocketMember> members) {
        Set<MessageQueue> queues = new HashSet<>();
        members.forEach(member -> queues.addAll(member.queues));
        return members.stream().noneMatch(member -> member.queues.isEmpty()) && queues.size() == QUEUES
                && members.stream().mapToInt(member -> member.queues.size()).sum() == QUEUES;
    }

    private static Map<String, Object> broadcast(RocketFeatures run) throws Exception {
        List<RocketMember> members = List.of(run.member(), run.member());
        for (RocketMember member : members) {
            Rocket.broadcast(member.consumer);
            member.start();
        }
        run.send(numbers(0, ROUND));
        List<Boolean> complete = new ArrayList<>();
        for (RocketMember member : members) {
            complete.add(RocketFeatures.isRange(member.receive(ROUND), ROUND));
        }
        return Program.object("all_once", complete);
    }

    private static Map<String, Object> resume(RocketFeatures run) throws Exception {
        run.send(numbers(0, ROUND));
        RocketMember first = run.member().start();
        first.receive(ROUND);
        first.close();
        run.send(List.of("a", "b", "c", "d"));
        RocketMember second = run.member().start();
        return Program.object("first", RocketFeatures.isRange(first.messages, ROUND), "second", sorted(second.receive(4)));
    }

    private static RocketMember starting(RocketFeatures run, ConsumeFromWhere where, long time) throws Exception {
        RocketMember member = run.member("_" + where.name().toLowerCase().replace("consume_from_", ""));
        DefaultMQPushConsumer consumer = member.consumer;
        consumer.setConsumeFromWhere(where);
        consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(time));
        return member.start();
    }

    /** A broker begins a new group at the first message of a queue that is young, wherever the group wants to begin. */
    private static Map<String, Object> starts(RocketFeatures run) throws Exception {
        run.send(List.of("0", "1", "2", "3"));
        long now = System.currentTimeMillis();
        List<RocketMember> members = List.of(
                starting(run, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, now),
                starting(run, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, now),
                starting(run, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, now - HOUR_MS));
        List<List<String>> received = new ArrayList<>();
        for (RocketMember member : members) {
            received.add(sorted(member.receive(4)));
        }
        return Program.object("first", received.get(0), "last", received.get(1), "timestamp", received.get(2));
    }

    private static Map<String, Object> startLastEmpty(RocketFeatures run) throws Exception {
        RocketMember member = starting(run, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 0);
        member.awaitQueues(QUEUES);
        Thread.sleep(RocketFeatures.QUIET_MS);
        run.send(List.of("0", "1", "2", "3"));
        return Program.object("received", sorted(member.receive(4)));
    }

    private static Map<String, Object> twoGroups(RocketFeatures run) throws Exception {
        List<RocketMember> members = List.of(run.member("_a").start(), run.member("_b").start());
        run.send(numbers(0, ROUND));
        List<Boolean> complete = new ArrayList<>();
        for (RocketMember member : members) {
            complete.add(RocketFeatures.isRange(member.receive(ROUND), ROUND));
        }
        return Program.object("all_once", complete);
    }
}
