import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer that prints `queue body` per message and leaves when its standard input ends. */
public final class PushMember {
    // Instead of the shipped 3 s and 30 s; why, is said in Rocket.java of tests/java.
    private static final int API_TIMEOUT_MS = 15_000;
    private static final int HEARTBEAT_MS = 5000;

    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(API_TIMEOUT_MS);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(strategy(args[3]));
        consumer.subscribe(args[1], "*");
        if (args[4].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                print(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        while (System.in.read() >= 0) {
        }
        consumer.shutdown();
        System.exit(0);
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            default:
                return new AllocateMessageQueueAveragely();
        }
    }

    private static synchronized void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.println(message.getQueueId() + " " + new String(message.getBody()));
        }
        System.out.flush();
    }
}
