package mqbridge.tests;

import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVER_RECEIVE_OVERFLOW;
import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVICE_UNAVAILABLE;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Phaser;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.exception.TubeClientException;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.utils.DateTimeConvertUtils;

/**
 * Single messages, all of a pack without waiting: the SDK has no batches, and chooses the partition itself, in turn, so order is lost.
 * What the broker had no room for is sent again until it has.
 */
final class BridgeToTube implements BridgeSink {
    // The broker's memory cache takes a moment to reach the disk; asking again at once only fills the link with refusals.
    private static final long OVERFLOW_PAUSE_MS = 5;

    private final TubeMultiSessionFactory factory;
    private final String target;
    private final List<MessageProducer> producers = new ArrayList<>();

    BridgeToTube(Args args) throws TubeClientException {
        target = args.text("target");
        TubeClientConfig config = new TubeClientConfig(args.text("target-master", args.text("master")));
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        factory = new TubeMultiSessionFactory(config);
        for (int i = args.count("producers", 1); i > 0; i--) {
            MessageProducer producer = factory.createProducer();
            producer.publish(target);
            producers.add(producer);
        }
    }

    @Override
    public BridgeSink.Pack pack(int partition) {
        return new Pack(producers.get(partition % producers.size()));
    }

    @Override
    public void close() throws IOException {
        try {
            factory.shutdown();
        } catch (TubeClientException thrown) {
            throw new IOException("the producers did not shut down", thrown);
        }
    }

    /** A message with its attribute string as it is: the SDK's setter copies the string once per attribute. */
    private static final class Outgoing extends Message {
        private static final long serialVersionUID = 1L;

        Outgoing(String topic, byte[] body, String attributes) {
            super(0, topic, body, attributes, 0);
        }
    }

    private final class Pack implements BridgeSink.Pack {
        private final MessageProducer producer;
        private final Phaser unanswered = new Phaser(1);
        private final Queue<Message> again = new ConcurrentLinkedQueue<>();
        private final StringBuilder attributes = new StringBuilder(512);
        private volatile String failure;
        private byte[] body;
        private String lastTime = "";
        private long lastMinute = -1;

        Pack(MessageProducer producer) {
            this.producer = producer;
        }

        @Override
        public void message(byte[] next) throws InterruptedException {
            finish();
            body = next == null || next.length == 0 ? BridgeMapping.NOTHING : next;
            attributes.append("mqbridge.v=1");
            if (body == BridgeMapping.NOTHING) {
                property(next == null ? BridgeMapping.NULL : BridgeMapping.EMPTY, "1");
            }
        }

        private void finish() throws InterruptedException {
            if (body != null) {
                send(new Outgoing(target, body, attributes.toString()));
                attributes.setLength(0);
                body = null;
            }
        }

        @Override
        public void property(String name, String value) {
            attributes.append(',');
            escaped(name);
            attributes.append('=');
            escaped(value);
        }

        /** TubeMQ's readers split on comma and equals sign, and fail on a blank value. */
        private void escaped(String text) {
            if (text.isEmpty()) {
                attributes.append('%');
            }
            for (int i = 0; i < text.length(); i++) {
                char character = text.charAt(i);
                switch (character) {
                    case '%' -> attributes.append("%25");
                    case ',' -> attributes.append("%2C");
                    case '=' -> attributes.append("%3D");
                    default -> attributes.append(character);
                }
            }
        }

        @Override
        public void type(String type) {
            property(BridgeMapping.MSG_TYPE, type);
        }

        @Override
        public void key(String key) {
            property(BridgeMapping.KEY, key);
        }

        @Override
        public void keys(String keys) {
            property(BridgeMapping.KEYS, keys);
        }

        /** The system attribute has minutes only, and neighbours mostly share theirs. */
        @Override
        public void eventTime(long millis) {
            long minute = Math.floorDiv(millis, 60_000L);
            if (minute != lastMinute) {
                lastTime = DateTimeConvertUtils.ms2yyyyMMddHHmm(millis);
                lastMinute = minute;
            }
            property(BridgeMapping.MSG_TIME, lastTime);
            property(BridgeMapping.EVENT_TIME, Long.toString(millis));
        }

        @Override
        public boolean store() throws InterruptedException {
            finish();
            unanswered.arriveAndAwaitAdvance();
            while (!again.isEmpty() && failure == null) {
                Thread.sleep(OVERFLOW_PAUSE_MS);
                for (Message message = again.poll(); message != null; message = again.poll()) {
                    send(message);
                }
                unanswered.arriveAndAwaitAdvance();
            }
            if (failure != null) {
                System.err.println("not stored, will come again: " + failure);
            }
            return failure == null;
        }

        private void send(Message message) throws InterruptedException {
            unanswered.register();
            Answer answer = new Answer(message);
            try {
                producer.sendMessage(message, answer);
            } catch (TubeClientException refused) {
                answer.onException(refused);
            }
        }

        private final class Answer implements MessageSentCallback {
            private final Message message;

            Answer(Message message) {
                this.message = message;
            }

            @Override
            public void onMessageSent(MessageSentResult result) {
                int code = result.getErrCode();
                if (code == SERVER_RECEIVE_OVERFLOW || code == SERVICE_UNAVAILABLE) {
                    again.add(message);
                } else if (!result.isSuccess()) {
                    failure = code + " " + result.getErrMsg();
                }
                unanswered.arriveAndDeregister();
            }

            @Override
            public void onException(Throwable thrown) {
                failure = thrown.toString();
                unanswered.arriveAndDeregister();
            }
        }
    }
}
