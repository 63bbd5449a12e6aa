package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads a RocketMQ topic with one of the pull consumers, a line per message.
 *
 * <pre>
 * --name-servers host:port  --topic T   --group G
 * --mode subscribe          a member of the group: DefaultLitePullConsumer, queues by rebalance, positions committed
 *        assign             all queues, a new group from their beginning: DefaultLitePullConsumer, no rebalance, positions committed
 *        pull               all queues from their beginning: DefaultMQPullConsumer, single pulls, nothing committed
 * --tags "a || b" (*)       --sql "x > 3"          filters, one of them; not with assign
 * --pull-size 32            messages per pull
 * --messages 0              --idle 30   stop after so many messages, or seconds without one (0: never)
 * --instance NAME  --tls    --digest    sha256 and size instead of the body
 * </pre>
 */
public final class RocketPull {
    private static final int POLL_MS = 200;

    private final String topic;
    private final Idle idle;
    private final boolean digest;
    private final int size;

    private RocketPull(Args args) {
        topic = args.text("topic");
        idle = new Idle(args);
        digest = args.flag("digest");
        size = args.count("pull-size", 32);
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            RocketPull pull = new RocketPull(args);
            String mode = args.text("mode", "subscribe");
            switch (mode) {
                case "subscribe", "assign" -> pull.lite(args, mode.equals("assign"));
                case "pull" -> pull.single(args);
                default -> throw new IllegalArgumentException("--mode " + mode + " is none of subscribe, assign, pull");
            }
            Program.printNow(Program.object("messages", pull.idle.seen()));
        });
    }

    @SuppressWarnings("deprecation")  // 5.x calls commitSync() commit(), which 4.9 does not have
    private void lite(Args args, boolean assign) throws Exception {
        DefaultLitePullConsumer consumer = Rocket.configured(new DefaultLitePullConsumer(args.text("group")), args);
        consumer.setPullBatchSize(size);
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (!assign) {
            consumer.subscribe(topic, Rocket.selector(args));
        }
        args.end();
        consumer.start();
        if (assign) {
            // No seek: what the pull that assign() began had fetched already is then given out a second time, now and then.
            consumer.assign(consumer.fetchMessageQueues(topic));
        }
        while (!idle.over()) {
            List<MessageExt> messages = consumer.poll(POLL_MS);
            print(messages);
            if (!messages.isEmpty()) {
                consumer.commitSync();
            }
        }
        consumer.shutdown();
    }

    @SuppressWarnings("deprecation")  // replaced by the lite consumer in 5.x, and still what many programs use
    private void single(Args args) throws Exception {
        DefaultMQPullConsumer consumer = Rocket.configured(new DefaultMQPullConsumer(args.text("group")), args);
        var selector = Rocket.selector(args);
        args.end();
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        long[] next = new long[queues.size()];
        for (int i = 0; i < next.length; i++) {
            next[i] = consumer.minOffset(queues.get(i));
        }
        while (!idle.over()) {
            boolean found = false;
            for (int i = 0; i < next.length && !idle.complete(); i++) {
                PullResult result = consumer.pull(queues.get(i), selector, next[i], size);
                next[i] = result.getNextBeginOffset();
                List<MessageExt> messages = result.getMsgFoundList();
                if (messages != null) {
                    print(messages);
                    found |= !messages.isEmpty();
                }
            }
            if (!found) {
                Thread.sleep(POLL_MS);
            }
        }
        consumer.shutdown();
    }

    private void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            Program.print(Rocket.line(message, digest));
        }
        Program.flush();
        if (!messages.isEmpty()) {
            idle.saw(messages.size());
        }
    }
}
