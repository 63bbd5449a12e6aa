package mqbridge.tests;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes a RocketMQ topic with the push consumer; a line per delivery, {@code accepted} or not. The summary counts the accepted ones and all.
 *
 * <pre>
 * --name-servers host:port  --topic T          --group G
 * --tags "a || b" (*)       --sql "x > 3"      filters, one of them
 * --from first              last, or yyyyMMddHHmmss: where a group without offset begins
 * --orderly                 one queue at a time per thread, with locks at the broker
 * --broadcast               every instance gets all; its offsets are in the folder --offsets
 * --fail 0                  how often each message is refused before it is accepted
 * --retry-level 0           delay level for refused ones; 0: by the broker, -1: straight to the dead letters
 * --max-reconsume -1        refusals before a message goes to the dead letters (the client's default: 16)
 * --batch 1                 messages per call of the listener           --threads 20  --hold 0  ms that the listener takes
 * --messages 0              --idle 30          stop after so many accepted messages, or seconds without a delivery (0: never)
 * --until FILE                                 stop as soon as there is such a file
 * --instance NAME  --tls    --access-key K  --secret-key S
 * --digest                                     sha256 and size instead of the body
 * --announce                                   a line when it has started
 * </pre>
 */
public final class RocketConsume {
    private static final int LOOK_MS = 50;
    // The shipped second between two deliveries of a refused message, for --orderly.
    private static final long SUSPEND_MS = 200;

    private final Idle idle;
    private final boolean digest;
    private final int failures;
    private final int retryLevel;
    private final long hold;
    private final Map<String, Integer> seen = new ConcurrentHashMap<>();
    private long deliveries;

    private RocketConsume(Args args) {
        idle = new Idle(args);
        digest = args.flag("digest");
        failures = args.count("fail", 0);
        retryLevel = args.count("retry-level", 0);
        hold = args.number("hold", 0);
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            RocketConsume consume = new RocketConsume(args);
            DefaultMQPushConsumer consumer = consumer(args);
            if (args.flag("orderly")) {
                consumer.registerMessageListener(consume.orderly());
            } else {
                consumer.registerMessageListener(consume.concurrently());
            }
            boolean announce = args.flag("announce");
            args.end();
            consumer.start();
            if (announce) {
                Program.printNow(Program.object("started", true));
            }
            consume.run();
            consumer.shutdown();
        });
    }

    private static DefaultMQPushConsumer consumer(Args args) throws Exception {
        if (args.flag("broadcast")) {  // read by the client when it is made
            System.setProperty("rocketmq.client.localOffsetStoreDir", args.text("offsets"));
        }
        DefaultMQPushConsumer consumer = Rocket.configured(
                new DefaultMQPushConsumer(args.text("group"), Rocket.hook(args), new AllocateMessageQueueAveragely()), args);
        consumer.subscribe(args.text("topic"), Rocket.selector(args));
        startFrom(consumer, args.text("from", "first"));
        consumer.setConsumeMessageBatchMaxSize(args.count("batch", 1));
        consumer.setMaxReconsumeTimes(args.count("max-reconsume", -1));
        int threads = args.count("threads", 20);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        if (args.flag("broadcast")) {
            Rocket.broadcast(consumer);
        }
        return consumer;
    }

    private static void startFrom(DefaultMQPushConsumer consumer, String from) {
        switch (from) {
            case "first" -> consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            case "last" -> consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
            default -> {
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
                consumer.setConsumeTimestamp(from);
            }
        }
    }

    private void run() throws InterruptedException {
        while (!idle.over()) {
            Thread.sleep(LOOK_MS);
            Program.flush();
        }
        Program.printNow(Program.object("messages", idle.seen(), "deliveries", deliveries()));
    }

    private MessageListenerConcurrently concurrently() {
        return (messages, context) -> {
            context.setDelayLevelWhenNextConsume(retryLevel);
            return accept(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        };
    }

    private MessageListenerOrderly orderly() {
        return (messages, context) -> {
            context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
            return accept(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        };
    }

    /** All of them or none: the listener answers for the whole call. A message is told by its id, which its redeliveries keep. */
    private boolean accept(List<MessageExt> messages) {
        boolean accepted = true;
        for (MessageExt message : messages) {
            accepted &= failures == 0 || seen.merge(message.getMsgId(), 1, Integer::sum) > failures;
        }
        for (MessageExt message : messages) {
            Map<String, Object> line = Rocket.line(message, digest);
            line.put("accepted", accepted);
            line.put("time", System.currentTimeMillis());
            Program.print(line);
        }
        if (hold > 0) {
            Program.flush();  // what can be committed is known, though the program is killed then
            pause();
        }
        delivered(messages.size());
        idle.saw(accepted ? messages.size() : 0);
        return accepted;
    }

    private void pause() {
        try {
            Thread.sleep(hold);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized void delivered(int count) {
        deliveries += count;
    }

    private synchronized long deliveries() {
        return deliveries;
    }
}
