package mqbridge.tests;

import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVER_RECEIVE_OVERFLOW;
import static org.apache.inlong.tubemq.corebase.TErrCodeConstants.SERVICE_UNAVAILABLE;

import java.util.Map;
import org.apache.inlong.tubemq.client.common.StatsLevel;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.factory.TubeSingleSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;
import org.apache.inlong.tubemq.corebase.utils.DateTimeConvertUtils;

/** Single messages, each waited for: the SDK has no batches. The key becomes an attribute. */
final class BenchToTube implements BenchSink {
    private static final long OVERFLOW_PAUSE_MS = 5;

    private final BenchCorpus corpus;
    private final String topic;
    private final TubeSingleSessionFactory factory;
    private final MessageProducer producer;

    BenchToTube(Args args, BenchCorpus corpus) throws Exception {
        this.corpus = corpus;
        topic = args.text("topic");
        TubeClientConfig config = new TubeClientConfig(args.text("master"));
        config.setStatsConfig(StatsLevel.ZERO, false, 60_000, 60_000);
        factory = new TubeSingleSessionFactory(config);
        producer = factory.createProducer();
        producer.publish(topic);
    }

    @Override
    public void send(long first, int count) throws Exception {
        for (long number = first; number < first + count; number++) {
            send(message(corpus.message(number)));
        }
    }

    private void send(Message message) throws Exception {
        MessageSentResult result = producer.sendMessage(message);
        while (!result.isSuccess()) {
            int code = result.getErrCode();
            if (code != SERVER_RECEIVE_OVERFLOW && code != SERVICE_UNAVAILABLE) {
                throw new IllegalStateException(code + " " + result.getErrMsg());
            }
            Thread.sleep(OVERFLOW_PAUSE_MS);
            result = producer.sendMessage(message);
        }
    }

    private Message message(BenchCorpus.Drawn drawn) {
        Message message = new Message(topic, drawn.body());
        if (drawn.type() != null) {
            message.putSystemHeader(drawn.type(), DateTimeConvertUtils.ms2yyyyMMddHHmm(System.currentTimeMillis()));
        }
        if (drawn.key() != null) {
            message.setAttrKeyVal("key", drawn.key());
        }
        for (Map.Entry<String, String> pair : drawn.properties()) {
            if (allowed(pair.getKey()) && allowed(pair.getValue())) {
                message.setAttrKeyVal(pair.getKey(), pair.getValue());
            }
        }
        return message;
    }

    /** What the SDK's setter takes. */
    private static boolean allowed(String text) {
        return !text.isBlank() && text.indexOf(',') < 0 && text.indexOf('=') < 0;
    }

    @Override
    public void flush() {}

    @Override
    public void close() throws Exception {
        factory.shutdown();
    }
}
