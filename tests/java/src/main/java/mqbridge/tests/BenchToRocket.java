package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;

/**
 * Sends that are waited for, of one message or of a list; the key becomes KEYS, the type the tag.
 *
 * <p>The client compresses bodies above 4 KiB with {@code --compression NONE|ZLIB|LZ4|ZSTD}, but never those of a list, and delays none of a
 * list: such messages are sent one by one.
 */
final class BenchToRocket implements BenchSink {
    private static final int DELAY_LEVEL_1_S = 1;
    private static final int COMPRESSED_ABOVE = 4096;

    private final BenchCorpus corpus;
    private final String topic;
    private final DefaultMQProducer producer;

    BenchToRocket(Args args, BenchCorpus corpus) throws Exception {
        this.corpus = corpus;
        topic = args.text("topic");
        args.count("batch", 1);
        producer = Rocket.producer(new DefaultMQProducer("fill", Rocket.hook(args)), args);
        String compression = args.text("compression", "NONE");
        producer.setCompressMsgBodyOverHowmuch(compression.equals("NONE") ? Integer.MAX_VALUE : COMPRESSED_ABOVE);
        if (!compression.equals("NONE")) {
            producer.setCompressType(CompressionType.valueOf(compression));
        }
        producer.start();
    }

    @Override
    public void send(long first, int count) throws Exception {
        List<Message> list = new ArrayList<>(count);
        for (long number = first; number < first + count; number++) {
            Message message = message(corpus.message(number));
            if (count == 1 || message.getDelayTimeLevel() > 0 || message.getBody().length > producer.getCompressMsgBodyOverHowmuch()) {
                check(producer.send(message));
            } else {
                list.add(message);
            }
        }
        if (!list.isEmpty()) {
            check(producer.send(list));
        }
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a message was not stored: " + result);
        }
    }

    private Message message(BenchCorpus.Drawn drawn) {
        Message message = new Message(topic, drawn.body());
        if (drawn.type() != null) {
            message.setTags(drawn.type());
        }
        if (drawn.key() != null) {
            message.setKeys(drawn.key());
        }
        for (Map.Entry<String, String> pair : drawn.properties()) {
            if (!pair.getKey().isBlank() && !pair.getValue().isBlank() && !MessageConst.STRING_HASH_SET.contains(pair.getKey())) {
                message.putUserProperty(pair.getKey(), pair.getValue());
            }
        }
        switch (drawn.oddity()) {
            case DELAYED -> message.setDelayTimeLevel(DELAY_LEVEL_1_S);
            case OTHER_KEY -> {
                MessageAccessor.putProperty(message, Rocket.SHARDING_KEY, "shard-" + drawn.key());
                message.setFlag(7);
            }
            default -> { }
        }
        return message;
    }

    @Override
    public void flush() {}

    @Override
    public void close() {
        producer.shutdown();
    }
}
