package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Batches to a chosen queue, one in flight per queue: the broker runs the requests of a connection side by side, so a second one could
 * overtake the first. Different queues, that is different threads, do not wait for each other.
 */
final class BridgeToRocket implements BridgeSink {
    // The encoded body of a batch has to stay below the broker's 4 MiB; what a message has besides its parts is below this.
    private static final int BATCH_BYTES = 1 << 20;
    private static final int FRAMING_BYTES = 150;
    private static final String ESCAPED = "mqbridge.x.";

    private final DefaultMQProducer producer;
    private final String target;
    private final int batchMessages;
    private final int batchBytes;
    private final List<MessageQueue> queues;

    BridgeToRocket(Args args) throws MQClientException {
        target = args.text("target");
        batchMessages = args.count("batch-messages", 1000);
        batchBytes = args.count("batch-bytes", BATCH_BYTES);
        producer = Rocket.configured(new DefaultMQProducer("bridge", Rocket.hook(args)), args);
        producer.start();
        queues = producer.fetchPublishMessageQueues(target).stream().sorted().toList();
    }

    @Override
    public BridgeSink.Pack pack(int partition) {
        return new Pack(queues.get(partition % queues.size()));
    }

    @Override
    public void close() {
        producer.shutdown();
    }

    private final class Pack implements BridgeSink.Pack {
        private final MessageQueue queue;
        private final List<Message> batch = new ArrayList<>();
        private Message message;
        private long bytes;
        private boolean stored = true;

        Pack(MessageQueue queue) {
            this.queue = queue;
        }

        @Override
        public void message(byte[] body) throws InterruptedException {
            if (body == null || body.length == 0) {
                begin(BridgeMapping.NOTHING);
                property(body == null ? BridgeMapping.NULL : BridgeMapping.EMPTY, "1");
            } else {
                begin(body);
            }
        }

        private void begin(byte[] body) throws InterruptedException {
            if (bytes + body.length > batchBytes || batch.size() >= batchMessages) {
                send();
            }
            message = new Message(target, body);
            bytes += body.length + FRAMING_BYTES;
            batch.add(message);
        }

        @Override
        public void property(String name, String value) {
            String key = MessageConst.STRING_HASH_SET.contains(name) ? ESCAPED + name : escaped(name);
            String text = escaped(value);
            message.putUserProperty(key, text);
            bytes += key.length() + text.length() + 2;
        }

        /** Two control characters separate the properties of a stored message, and the setter takes no blank text. */
        private static String escaped(String text) {
            if (text.isBlank()) {
                return text + "%";
            }
            boolean plain = text.indexOf('\u0001') < 0 && text.indexOf('\u0002') < 0 && text.indexOf('%') < 0;
            return plain ? text : text.replace("%", "%25").replace("\u0001", "%01").replace("\u0002", "%02");
        }

        @Override
        public void type(String type) {
            message.setTags(type);
        }

        @Override
        public void key(String key) {
            MessageAccessor.putProperty(message, Rocket.SHARDING_KEY, key);
        }

        @Override
        public void keys(String keys) {
            message.setKeys(keys);
        }

        @Override
        public void eventTime(long millis) {
            property(BridgeMapping.EVENT_TIME, Long.toString(millis));
        }

        @Override
        public boolean store() throws InterruptedException {
            send();
            return stored;
        }

        /** After a batch that was not stored the rest of the pack is not sent: it comes again whole. */
        private void send() throws InterruptedException {
            if (stored && !batch.isEmpty()) {
                try {
                    producer.send(batch, queue);
                } catch (MQClientException | RemotingException | MQBrokerException notStored) {
                    System.err.println("not stored, will come again: " + notStored);
                    stored = false;
                }
            }
            batch.clear();
            bytes = 0;
        }
    }
}
