package mqbridge.tests;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;

/**
 * A {@link NumberedFlow} to a Pulsar topic; each partition has a named producer, which sends again what is not answered.
 *
 * <pre>
 * --url pulsar://host:port  --producer NAME
 * </pre>
 */
public final class PulsarFlow extends NumberedFlow {
    private final List<Producer<byte[]>> producers = new ArrayList<>();

    private PulsarFlow(Args args, PulsarClient client) throws PulsarClientException {
        super(args);
        String name = args.text("producer", "flow");
        args.end();
        for (int partition = 0; partition < partitions; partition++) {
            producers.add(client.newProducer(Schema.BYTES).topic(topic + "-partition-" + partition).producerName(name)
                    .sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).create());
        }
    }

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            try (PulsarClient client = PulsarClients.open(args)) {
                new PulsarFlow(args, client).run();
            }
        });
    }

    @Override
    void send(int partition, String key, byte[] body) {
        producers.get(partition).newMessage().key(key).value(body).sendAsync().whenComplete((id, thrown) -> {
            if (thrown != null) {
                failed(thrown);
            } else {
                stored(partition, 1);
            }
        });
    }
}
