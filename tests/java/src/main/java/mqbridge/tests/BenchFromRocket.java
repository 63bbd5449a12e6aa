package mqbridge.tests;

import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The push consumer, as it is shipped. */
final class BenchFromRocket implements BenchSource {
    private final DefaultMQPushConsumer consumer;

    BenchFromRocket(Args args, Receiver receiver) throws MQClientException {
        consumer = Rocket.configured(new DefaultMQPushConsumer(args.text("group"), Rocket.hook(args)), args);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("from-topic"), "*");
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeConcurrentlyContext context) -> {
            messages.forEach(message -> receiver.received(message.getBody()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
