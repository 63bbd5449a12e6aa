package mqbridge.tests;

import java.util.Map;

/**
 * The comparison of the benchmark: one system to another, at least once, as one would write it with the official clients.
 *
 * <p>A thread per partition takes a pack, sends all of it, waits until the target has stored every message, and only then acknowledges
 * the pack; no partition waits for another.
 *
 * <pre>
 * --source tubemq     --sink pulsar   tubemq, pulsar or rocketmq, each
 * --topic T           --group G       read from, and as whom (in Pulsar the subscription)
 * --target T                          partition p goes to partition p; TubeMQ's client chooses by itself
 * --master host:port                  TubeMQ; --target-master when both are
 * --url pulsar://...                  Pulsar; --target-url when both are and differ
 * --authorities FILE  --token T       Pulsar with TLS and authentication
 * --tls  --access-key K --secret-key S  RocketMQ with both; its certificates are system properties
 * --name-servers host:port            RocketMQ; both ends
 * --messages 0        --idle 30       stop after so many messages, or seconds without one (0: never)
 * --warmup 0                          messages that the final figures leave out
 * --cluster tube                      name of the source in mqbridge.origin
 * --rules 0                           with {@link BridgeRules} in front of so many partitions of the target (0: without)
 * from TubeMQ:   --threads 3          --consumers 1   pull threads, shared out over so many consumers of the group
 *                --confirm local      or commit: with the next get, or by a request of its own
 * from RocketMQ: --threads 3          that call the listener, each with a queue
 * from Pulsar:   --receiver-queue 2000   messages, per partition
 * to Pulsar:     --linger-ms 2        --batch-messages 1000  --batch-bytes 524288  --compression NONE
 * to RocketMQ:   --batch-messages 1000  --batch-bytes 1048576
 * to TubeMQ:     --producers 1
 * </pre>
 */
public final class JavaBridge {
    interface Maker<T> {
        T make() throws Exception;
    }

    private JavaBridge() {}

    public static void main(String[] argv) {
        Program.main(argv, args -> {
            BridgeProgress progress = new BridgeProgress(args);
            BridgeSource source = made(args, "source", "tubemq", Map.of(
                    "tubemq", () -> new BridgeFromTube(args, progress),
                    "pulsar", () -> new BridgeFromPulsar(args, progress),
                    "rocketmq", () -> new BridgeFromRocket(args, progress)));
            try (BridgeSink sink = ruled(args, made(args, "sink", "pulsar", Map.of(
                    "tubemq", () -> new BridgeToTube(args),
                    "pulsar", () -> new BridgeToPulsar(args),
                    "rocketmq", () -> new BridgeToRocket(args))))) {
                args.end();
                source.run(sink);
            }
        });
    }

    private static BridgeSink ruled(Args args, BridgeSink sink) {
        int partitions = args.count("rules", 0);
        return partitions == 0 ? sink : new BridgeRules(sink, partitions);
    }

    /** Made by a lambda, so that the client of a system that takes no part need not be on the class path. */
    private static <T> T made(Args args, String name, String otherwise, Map<String, Maker<T>> makers) throws Exception {
        Maker<T> maker = makers.get(args.text(name, otherwise));
        if (maker == null) {
            throw new IllegalArgumentException("--" + name + " is none of " + makers.keySet());
        }
        return maker.make();
    }
}
