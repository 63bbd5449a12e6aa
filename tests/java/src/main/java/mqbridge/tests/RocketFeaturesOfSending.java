package mqbridge.tests;

import static mqbridge.tests.RocketFeatures.bytes;
import static mqbridge.tests.RocketFeatures.number;
import static mqbridge.tests.RocketFeatures.numbers;
import static mqbridge.tests.RocketFeatures.sorted;
import static mqbridge.tests.RocketFeatures.text;
import static mqbridge.tests.RocketFeatures.texts;
import static mqbridge.tests.RocketFeatures.until;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** What producers do, and what consumers read of it. */
final class RocketFeaturesOfSending {
    static final Map<String, RocketFeatures.Feature> ALL = Map.ofEntries(
            Map.entry("send", RocketFeaturesOfSending::send), Map.entry("batch", RocketFeaturesOfSending::batch),
            Map.entry("selector", RocketFeaturesOfSending::selector), Map.entry("compressed", RocketFeaturesOfSending::compressed),
            Map.entry("large", RocketFeaturesOfSending::large), Map.entry("delay_level", RocketFeaturesOfSending::delayLevel),
            Map.entry("timer", RocketFeaturesOfSending::timer), Map.entry("transaction", RocketFeaturesOfSending::transaction),
            Map.entry("request_reply", RocketFeaturesOfSending::requestReply), Map.entry("query", RocketFeaturesOfSending::query),
            Map.entry("trace", RocketFeaturesOfSending::trace));

    /** Properties that clients and brokers set themselves. */
    private static final Set<String> SYSTEM_PROPERTIES = Set.of("UNIQ_KEY", "WAIT", "TAGS", "KEYS", "CLUSTER", "MSG_REGION", "TRACE_ON",
            "MIN_OFFSET", "MAX_OFFSET", "INSTANCE_ID");

    private static final int KEYS = 5;
    private static final int ROUNDS = 10;
    private static final int[] SIZES = {4095, 4096, 20_000};
    private static final int LARGE_BYTES = 4_000_000;
    private static final int TIMER_MS = 3000;
    private static final int REQUEST_MS = 30_000;
    private static final long HOUR_MS = 3_600_000;

    private RocketFeaturesOfSending() {}

    // --- one message -------------------------------------------------------------------------------------------------

    private static Message described(RocketFeatures run, String value) {
        Message message = new Message(run.topic, "tag", "key1 key2", 7, bytes(value), true);
        message.putUserProperty("plain", "1");
        message.putUserProperty("text", "ä€ = 2");
        return message;
    }

    static Map<String, String> properties(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.keySet().removeAll(SYSTEM_PROPERTIES);
        return properties;
    }

    private static Map<String, Object> describe(MessageExt message) {
        return Program.object("value", text(message), "tags", message.getTags(), "keys", message.getKeys(),
                "properties", properties(message), "tries", message.getReconsumeTimes());
    }

    private static List<Integer> flags(List<MessageExt> messages) {
        return messages.stream().map(MessageExt::getFlag).toList();
    }

    private static Map<String, Object> send(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        SendResult sync = producer.send(described(run, "sync"));
        CompletableFuture<SendResult> async = new CompletableFuture<>();
        producer.send(described(run, "async"), completing(async));
        List<SendResult> results = List.of(async.get(), sync);
        producer.sendOneway(described(run, "oneway"));
        List<MessageExt> read = new ArrayList<>(run.read(run.topic, 3));
        read.sort(Comparator.comparing(RocketFeatures::text));
        boolean same = true;
        for (int i : List.of(0, 2)) {
            same &= isOf(results.get(i / 2), read.get(i));
        }
        return Program.object("messages", read.stream().map(RocketFeaturesOfSending::describe).toList(), "flags", flags(read),
                "results_are_of_messages", same);
    }

    private static SendCallback completing(CompletableFuture<SendResult> future) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                future.completeExceptionally(failure);
            }
        };
    }

    private static boolean isOf(SendResult result, MessageExt message) {
        return result.getMsgId().equals(message.getMsgId()) && result.getQueueOffset() == message.getQueueOffset()
                && result.getMessageQueue().getQueueId() == message.getQueueId()
                && result.getOffsetMsgId().equals(((MessageClientExt) message).getOffsetMsgId());
    }

    /** The ids of a batch that 5.3.3 has sent are one id when they are read, so nothing is said of them. */
    private static Map<String, Object> batch(RocketFeatures run) throws Exception {
        SendResult result = run.producer().send(List.of(described(run, "0"), described(run, "1"), described(run, "2")));
        List<MessageExt> read = run.read(run.topic, 3);
        List<Long> offsets = read.stream().map(message -> message.getQueueOffset() - result.getQueueOffset()).toList();
        return Program.object("messages", read.stream().map(RocketFeaturesOfSending::describe).toList(), "flags", flags(read),
                "offsets", offsets, "queues", read.stream().map(MessageExt::getQueueId).distinct().count());
    }

    private static Map<String, Object> selector(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        int queues = producer.fetchPublishMessageQueues(run.topic).size();
        for (int value : numbers(0, KEYS * ROUNDS)) {
            producer.send(run.message(value), new SelectMessageQueueByHash(), value % KEYS);
        }
        List<MessageExt> read = run.read(run.topic, KEYS * ROUNDS);
        Map<Integer, Set<Integer>> queuesOfKeys = new HashMap<>();
        read.forEach(each -> queuesOfKeys.computeIfAbsent(number(each) % KEYS, key -> new HashSet<>()).add(each.getQueueId()));
        return Program.object("queues", queues, "all_once", RocketFeatures.isRange(read, KEYS * ROUNDS),
                "in_order", RocketFeatures.inOrder(read),
                "one_queue_per_key", queuesOfKeys.values().stream().allMatch(each -> each.size() == 1));
    }

    /** The client compresses bodies from 4 KiB on. */
    private static Map<String, Object> compressed(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<String> sent = Arrays.stream(SIZES).mapToObj("x"::repeat).sorted().toList();
        for (String value : sent) {
            producer.send(run.message(value));
        }
        List<String> read = sorted(run.read(run.topic, sent.size()));
        return Program.object("sizes", read.stream().map(String::length).toList(), "same", read.equals(sent));
    }

    private static Map<String, Object> large(RocketFeatures run) throws Exception {
        byte[] body = new byte[LARGE_BYTES];
        new Random(1).nextBytes(body);
        run.producer().send(new Message(run.topic, body));
        byte[] read = run.read(run.topic, 1).get(0).getBody();
        return Program.object("size", read.length, "same", Arrays.equals(read, body));
    }

    // --- later -------------------------------------------------------------------------------------------------------

    private static Map<String, Object> delayed(RocketFeatures run, Message message, long earliest) throws Exception {
        long[] arrival = new long[1];
        RocketMember member = run.member().reacting(each -> {
            arrival[0] = System.currentTimeMillis();
            return true;
        }).start();
        DefaultMQProducer producer = run.producer();
        producer.send(message);
        producer.send(run.message("now"));
        List<MessageExt> messages = member.receive(2);
        return Program.object("received", texts(messages), "early", arrival[0] < earliest, "tags", messages.get(1).getTags());
    }

    private static Map<String, Object> delayLevel(RocketFeatures run) throws Exception {
        Message message = described(run, "delayed");
        message.setDelayTimeLevel(2);
        return delayed(run, message, System.currentTimeMillis() + 5000);
    }

    private static Map<String, Object> timer(RocketFeatures run) throws Exception {
        Message message = described(run, "delayed");
        long due = System.currentTimeMillis() + TIMER_MS;
        message.setDeliverTimeMs(due);
        return delayed(run, message, due);
    }

    // --- transactions ------------------------------------------------------------------------------------------------

    private static Map<String, Object> transaction(RocketFeatures run) throws Exception {
        Set<String> checked = new ConcurrentSkipListSet<>();
        TransactionMQProducer producer = new TransactionMQProducer(run.group + "_producer");
        producer.setExecutorService(Executors.newSingleThreadExecutor());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(text(message));
                return text(message).equals("checked") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        run.started(producer);
        producer.sendMessageInTransaction(described(run, "committed"), LocalTransactionState.COMMIT_MESSAGE);
        producer.sendMessageInTransaction(described(run, "rolled back"), LocalTransactionState.ROLLBACK_MESSAGE);
        List<String> first = texts(run.read(run.topic, 1));
        producer.sendMessageInTransaction(described(run, "checked"), LocalTransactionState.UNKNOW);
        producer.sendMessageInTransaction(described(run, "checked and refused"), LocalTransactionState.UNKNOW);
        until("checks", () -> checked.size() == 2);
        List<MessageExt> messages = run.read(run.topic, 2);
        return Program.object("first", first, "received", sorted(messages), "checked", checked,
                "tags", messages.stream().map(MessageExt::getTags).toList());
    }

    // --- request and reply -------------------------------------------------------------------------------------------

    /** Of the forms of `request`, only some work in both clients: one with a selector and a callback is among them. */
    private static Map<String, Object> requestReply(RocketFeatures run) throws Exception {
        DefaultMQProducer replier = run.producer();
        DefaultMQProducer requester = run.producer();
        run.member().reacting(request -> {
            try {
                replier.send(MessageUtil.createReplyMessage(request, bytes("reply to " + text(request))));
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
            return true;
        }).start().awaitQueues(4);
        CompletableFuture<Message> reply = new CompletableFuture<>();
        requester.request(run.message("request"), new SelectMessageQueueByHash(), "key", new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                reply.complete(message);
            }

            @Override
            public void onException(Throwable failure) {
                reply.completeExceptionally(failure);
            }
        }, REQUEST_MS);
        return Program.object("reply", text(reply.get()));
    }

    // --- queries and traces ------------------------------------------------------------------------------------------

    private static Map<String, Object> query(RocketFeatures run) throws Exception {
        DefaultMQProducer producer = run.producer();
        List<SendResult> results = new ArrayList<>();
        for (int value : numbers(0, 4)) {
            results.add(producer.send(new Message(run.topic, "tag", value % 2 == 0 ? "even two" : "odd", bytes(value))));
        }
        Map<String, Object> outcome = Program.object();
        for (String key : List.of("even", "two", "odd")) {
            until(key, () -> found(producer, run.topic, key).size() == 2);
            outcome.put(key, found(producer, run.topic, key));
        }
        outcome.put("unknown", found(producer, run.topic, "unknown"));
        outcome.put("by_id", text(producer.viewMessage(run.topic, results.get(1).getMsgId())));
        outcome.put("by_offset_id", text(producer.viewMessage(run.topic, results.get(2).getOffsetMsgId())));
        return outcome;
    }

    @SuppressWarnings("deprecation")  // 5.x has it in its tools, too
    private static List<String> found(DefaultMQProducer producer, String topic, String key) throws InterruptedException {
        long now = System.currentTimeMillis();
        try {
            return sorted(producer.queryMessage(topic, key, 32, now - HOUR_MS, now + HOUR_MS).getMessageList());
        } catch (MQClientException none) {
            return List.of();
        }
    }

    /** Clients describe what they do with a message in messages of another topic, in records that begin with their kind. */
    private static Map<String, Object> trace(RocketFeatures run) throws Exception {
        String traces = run.topic + "_trace";
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(run.group, null, new AllocateMessageQueueAveragely(), true, traces);
        RocketMember member = new RocketMember(run, consumer).start();
        DefaultMQProducer producer = run.started(new DefaultMQProducer(run.group + "_producer", null, true, traces));
        String id = producer.send(described(run, "traced")).getMsgId();
        member.await(1);
        Set<String> kinds = new TreeSet<>();
        until("traces", () -> {
            for (MessageExt trace : run.read(traces, 1)) {
                for (String record : text(trace).split("\u0002")) {
                    if (record.contains(id)) {
                        kinds.add(record.split("\u0001")[0]);
                    }
                }
            }
            return kinds.size() == 3;
        });
        return Program.object("kinds", kinds);
    }
}
