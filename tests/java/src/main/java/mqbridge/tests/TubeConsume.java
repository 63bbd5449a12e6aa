package mqbridge.tests;

import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.TErrCodeConstants;

/**
 * Consumes a TubeMQ topic with the pull consumer, from the first message, and confirms each pack after its lines are printed.
 *
 * <p>It stops between packs, so there can be more lines than {@code --messages}. {@code offset} is where the pack began: TubeMQ tells no
 * offset per message; {@code index} is the place in the pack.
 *
 * <pre>
 * --master host:port  --topic T        --group G
 * --messages 0        --idle 30        stop after so many messages, or seconds without one (0: never)
 * --until FILE                         stop as soon as there is such a file
 * --types a,b         --digest         server-side filter; sha256 and size instead of the body
 * --heartbeat 2000                     ms; partitions arrive in heartbeats only
 * </pre>
 */
public final class TubeConsume {
    private static final long READY_WAIT_MS = 500;

    private TubeConsume() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            String topic = args.text("topic");
            ConsumerConfig config = config(args.text("master"), args.text("group"), args.number("heartbeat", 2000));
            TreeSet<String> types = new TreeSet<>(args.list("types"));
            Idle idle = new Idle(args);
            boolean digest = args.flag("digest");
            args.end();

            TubeSingleSessionFactory factory = new TubeSingleSessionFactory(config);
            PullMessageConsumer consumer = factory.createPullConsumer(config);
            consumer.subscribe(topic, types).completeSubscribe();
            consume(consumer, idle, digest);
            Program.printNow(Program.object("messages", idle.seen()));
            Tube.shutdown(consumer);
            factory.shutdown();
        });
    }

    private static ConsumerConfig config(String master, String group, long heartbeatMs) {
        ConsumerConfig config = new ConsumerConfig(master, group);
        config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
        config.setHeartbeatPeriodMs(heartbeatMs);
        config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS);
        return config;
    }

    private static void consume(PullMessageConsumer consumer, Idle idle, boolean digest) throws Exception {
        while (!idle.over()) {
            ConsumerResult pack = consumer.getMessage();
            if (!pack.isSuccess()) {
                tolerate(pack);
                continue;
            }
            print(pack, digest);
            ConsumerResult confirmed = consumer.confirmConsume(pack.getConfirmContext(), true);
            if (!confirmed.isSuccess()) {
                System.err.println("not confirmed, will come again: " + confirmed.getErrCode() + " " + confirmed.getErrMsg());
            }
            if (!pack.getMessageList().isEmpty()) {
                idle.saw(pack.getMessageList().size());
            }
        }
    }

    /** The codes that mean "call again" are silent; the others are said, and the SDK's own recovery goes on. */
    private static void tolerate(ConsumerResult failed) {
        int code = failed.getErrCode();
        if (!TErrCodeConstants.IGNORE_ERROR_SET.contains(code)) {
            System.err.println("get: " + code + " " + failed.getErrMsg());
        }
    }

    private static void print(ConsumerResult pack, boolean digest) {
        List<Message> messages = pack.getMessageList();
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            Map<String, Object> line = Program.object("partition", pack.getPartitionKey(), "offset", pack.getCurrOffset(), "index", i,
                    "messageId", message.getIndexId(), "msgType", message.getMsgType(), "msgTime", message.getMsgTime(),
                    "attributes", message.getAttribute());
            Body.describe(line, message.getData(), digest);
            Program.print(line);
        }
        Program.flush();
    }
}
