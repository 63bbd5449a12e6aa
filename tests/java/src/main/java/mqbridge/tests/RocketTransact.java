package mqbridge.tests;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends transactional messages: a line per message with its outcome, a line per check that the broker asked for. It ends when every
 * message is committed or rolled back, by its outcome or by a check.
 *
 * <pre>
 * --name-servers host:port  --topic T    --group G       --messages N (1)   --start 0   --size 1024
 * --outcomes commit,rollback,unknown     of the local transactions, in turn
 * --answers commit,rollback,unknown      to the checks of unknown ones, in turn
 * --tags a,b                --keys k{n}  --properties k=v,k2=v{n}
 * --timeout 120             seconds until all checks have to be answered    --instance NAME  --tls
 * </pre>
 */
public final class RocketTransact implements TransactionListener {
    private static final int LOOK_MS = 50;

    private final String topic;
    private final long first;
    private final long end;
    private final Body body;
    private final List<String> tags;
    private final String keys;
    private final List<Map.Entry<String, String>> properties;
    private final List<String> outcomes;
    private final List<String> answers;
    private final long timeout;
    private final AtomicInteger checks = new AtomicInteger();
    private final Map<String, Long> sequences = new ConcurrentHashMap<>();
    /** What became of the messages so far, by transaction id: a broker may ask about one that is settled, too. */
    private final Map<String, LocalTransactionState> states = new ConcurrentHashMap<>();

    private RocketTransact(Args args) {
        topic = args.text("topic");
        first = args.number("start", 0);
        end = first + args.number("messages", 1);
        body = new Body(args.count("size", 1024));
        tags = args.list("tags");
        keys = args.text("keys", null);
        properties = args.pairs("properties");
        outcomes = args.list("outcomes");
        answers = args.list("answers");
        timeout = args.number("timeout", 120);
    }

    public static void main(String[] argv) {
        Rocket.main(argv, args -> {
            RocketTransact transact = new RocketTransact(args);
            TransactionMQProducer producer = Rocket.producer(new TransactionMQProducer(args.text("group")), args);
            args.end();
            ExecutorService checking = Executors.newSingleThreadExecutor();
            producer.setTransactionListener(transact);
            producer.setExecutorService(checking);
            producer.start();
            transact.run(producer);
            transact.finish(checking);
            // Its last requests wait for answers: what was sent one way before has been written then.
            producer.shutdown();
        });
    }

    private void run(TransactionMQProducer producer) throws Exception {
        for (long sequence = first; sequence < end; sequence++) {
            TransactionSendResult result = producer.sendMessageInTransaction(message(sequence), sequence);
            Map<String, Object> line = Program.object("seq", sequence, "outcome", result.getLocalTransactionState().name(),
                    "transactionId", result.getTransactionId(), "messageId", result.getMsgId(), "status", result.getSendStatus().name());
            Body.describe(line, body.of(sequence), false);
            Program.printNow(line);
        }
        long deadline = System.nanoTime() + timeout * 1_000_000_000L;
        while (states.containsValue(LocalTransactionState.UNKNOW)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not settled by checks in " + timeout + " s: " + states);
            }
            Thread.sleep(LOOK_MS);
        }
    }

    /** The summary, when the client has sent what the last check answered: it does so after the listener has returned. */
    private void finish(ExecutorService checking) throws InterruptedException {
        checking.shutdown();
        if (!checking.awaitTermination(timeout, TimeUnit.SECONDS)) {
            throw new IllegalStateException("a check is not answered in " + timeout + " s");
        }
        Program.print(Program.object("messages", end - first, "checks", checks.get()));
    }

    private Message message(long sequence) {
        Message message = new Message(topic, body.of(sequence));
        if (!tags.isEmpty()) {
            message.setTags(tags.get((int) (sequence % tags.size())));
        }
        if (keys != null) {
            message.setKeys(Body.numbered(keys, sequence));
        }
        for (Map.Entry<String, String> pair : properties) {
            message.putUserProperty(pair.getKey(), Body.numbered(pair.getValue(), sequence));
        }
        return message;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object sequence) {
        LocalTransactionState state = inTurn(outcomes, (Long) sequence - first);
        sequences.put(message.getTransactionId(), (Long) sequence);
        states.put(message.getTransactionId(), state);
        return state;
    }

    /** Of a message that is settled the answer is what became of it; one of an earlier process is unknown here. */
    @Override
    public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
        String id = message.getTransactionId();
        LocalTransactionState state = states.getOrDefault(id, LocalTransactionState.UNKNOW);
        if (state == LocalTransactionState.UNKNOW) {
            state = inTurn(answers, checks.getAndIncrement());
            states.put(id, state);
        }
        Program.printNow(Program.object("check", sequences.get(id), "answer", state.name(), "transactionId", id,
                "offsetMessageId", message.getMsgId(), "topic", message.getTopic(), "time", System.currentTimeMillis()));
        return state;
    }

    private static LocalTransactionState inTurn(List<String> states, long number) {
        String state = states.isEmpty() ? "commit" : states.get((int) (number % states.size()));
        return switch (state) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown" -> LocalTransactionState.UNKNOW;
            default -> throw new IllegalArgumentException(state + " is none of commit, rollback, unknown");
        };
    }
}
