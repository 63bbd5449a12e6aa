package mqbridge.tests;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * A {@link NumberedFlow} to a RocketMQ topic. Each queue has a thread, which sends what waits in one batch, and again until it is answered:
 * only one unanswered request keeps the order of a queue.
 *
 * <pre>
 * --name-servers host:port  --producer GROUP
 * </pre>
 */
public final class RocketFlow extends NumberedFlow {
    private static final int MAX_WAITING = 1000;
    private static final int MAX_BATCH = 32;
    private static final int PAUSE_MS = 200;

    private final DefaultMQProducer producer;
    private final List<BlockingQueue<Message>> waiting;

    private RocketFlow(Args args) {
        super(args);
        producer = Rocket.producer(new DefaultMQProducer(args.text("producer", "flow")), args);
        args.end();
        waiting = Stream.generate(() -> (BlockingQueue<Message>) new ArrayBlockingQueue<Message>(MAX_WAITING)).limit(partitions).toList();
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            RocketFlow flow = new RocketFlow(args);
            flow.start();
            flow.run();
        });
    }

    private void start() throws MQClientException {
        producer.start();
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        if (queues.size() != partitions) {
            throw new IllegalStateException(topic + " has the queues " + queues);
        }
        queues.sort(Comparator.naturalOrder());
        for (int partition = 0; partition < partitions; partition++) {
            int index = partition;
            Thread thread = new Thread(() -> sendAll(index, queues.get(index)), "queue " + index);
            thread.setDaemon(true);
            thread.start();
        }
    }

    @Override
    void send(int partition, String key, byte[] body) throws InterruptedException {
        Message message = new Message(topic, body);
        MessageAccessor.putProperty(message, Rocket.SHARDING_KEY, key);
        waiting.get(partition).put(message);
    }

    private void sendAll(int partition, MessageQueue queue) {
        try {
            while (true) {
                List<Message> batch = new ArrayList<>();
                batch.add(waiting.get(partition).take());
                waiting.get(partition).drainTo(batch, MAX_BATCH - 1);
                while (!isAnswered(batch, queue)) {
                    TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
                }
                stored(partition, batch.size());
            }
        } catch (InterruptedException | RuntimeException thrown) {
            failed(thrown);
        }
    }

    private boolean isAnswered(List<Message> batch, MessageQueue queue) throws InterruptedException {
        try {
            if (batch.size() == 1) {
                producer.send(batch.get(0), queue);
            } else {
                producer.send(batch, queue);
            }
            return true;
        } catch (RemotingException | MQBrokerException | MQClientException refused) {
            System.err.println(queue + " is sent to again: " + refused);
            return false;
        }
    }
}
