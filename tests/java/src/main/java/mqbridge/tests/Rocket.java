package mqbridge.tests;

import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * What the RocketMQ programs share.
 *
 * <p>They run with the clients 5.3.3 and 4.9.8, compiled against the newer: what moved or is missing in the older goes by reflection, or by
 * the property that the newer method would set.
 */
final class Rocket {
    static final String SHARDING_KEY = "__SHARDINGKEY";
    static final String DELIVER_MS = "TIMER_DELIVER_MS";
    // The shipped 3 s are over on a test machine whose cores are all busy.
    private static final int API_TIMEOUT_MS = 15_000;
    // 5.3.3 sometimes leaves out the heartbeat that follows the assignment of queues; the broker answers no pull before the next one,
    // which comes after 30 s as shipped.
    private static final int HEARTBEAT_MS = 5000;

    private Rocket() {}

    /** As {@link Program#main}; the client 4.9, which would log into the home folder, reads the setting when its first class is loaded. */
    static void main(String[] argv, Program.Main main) {
        System.setProperty("rocketmq.client.logUseSlf4j", "true");  // 5.x reads rmq.logback.xml
        Program.main(argv, main);
    }

    /**
     * Options that all clients have: {@code --name-servers host:port;host:port --instance NAME --tls --heartbeat 5000} (ms); call before the
     * client starts.
     */
    static <T extends ClientConfig> T configured(T client, Args args) {
        client.setNamesrvAddr(args.text("name-servers"));
        client.setInstanceName(args.text("instance", client.getInstanceName()));
        client.setUseTLS(args.flag("tls"));
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        client.setHeartbeatBrokerInterval(args.count("heartbeat", HEARTBEAT_MS));
        return client;
    }

    /**
     * The same for a producer of {@code --topic}, which waits longer than the shipped 3 s: the broker stores nothing while its disk is busy.
     *
     * <p>A producer that could not ask for its topic's route (the request failed, or another thread asked for more than 3 s) takes the
     * topic for one that is still to be made, with the queues of the template topic, and sends to queues that it does not have. So the
     * topic is its own template here.
     */
    static <T extends DefaultMQProducer> T producer(T client, Args args) {
        client.setCreateTopicKey(args.text("topic"));
        client.setDefaultTopicQueueNums(Integer.MAX_VALUE);
        client.setSendMsgTimeout(API_TIMEOUT_MS);
        return configured(client, args);
    }

    /**
     * Signs every request when {@code --access-key K --secret-key S} are given; null without. TLS is set up by system properties,
     * {@code tls.client.certPath} and others.
     */
    static RPCHook hook(Args args) {
        String accessKey = args.text("access-key", null);
        String secretKey = args.text("secret-key", null);
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    /** {@code --tags "a || b"} or {@code --sql "x > 3"}; without either: all messages. */
    static MessageSelector selector(Args args) {
        String sql = args.text("sql", null);
        String tags = args.text("tags", "*");
        return sql == null ? MessageSelector.byTag(tags) : MessageSelector.bySql(sql);
    }

    /** {@code setMessageModel(BROADCASTING)}, whose parameter's class changed its package between 4.9 and 5. */
    static void broadcast(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        for (var method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
                return;
            }
        }
        throw new NoSuchMethodException("setMessageModel");
    }

    /** A line about a message as the SDK shows it; {@code messageId} is what applications see, {@code offsetMessageId} the place on the broker. */
    static Map<String, Object> line(MessageExt message, boolean digest) {
        String offsetId = message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId();
        Map<String, Object> line = Program.object("topic", message.getTopic(), "broker", message.getBrokerName(),
                "queue", message.getQueueId(), "offset", message.getQueueOffset(), "messageId", message.getMsgId(),
                "offsetMessageId", offsetId, "tags", message.getTags(), "keys", message.getKeys(),
                "properties", new TreeMap<>(message.getProperties()), "reconsumeTimes", message.getReconsumeTimes(),
                "bornTime", message.getBornTimestamp(), "storeTime", message.getStoreTimestamp(),
                "flag", message.getFlag(), "sysFlag", message.getSysFlag(), "transactionId", message.getTransactionId());
        byte[] body = message.getBody();
        Body.describe(line, body == null ? new byte[0] : body, digest);
        return line;
    }

    static void describe(Map<String, Object> line, MessageQueue queue) {
        line.put("broker", queue.getBrokerName());
        line.put("queue", queue.getQueueId());
    }
}
