package mqbridge.tests;

/** A topic that the benchmark reads, by the official client of its system, until it is closed. */
interface BenchSource extends AutoCloseable {
    interface Receiver {
        void received(byte[] body);
    }

    static BenchSource of(Args args, Receiver receiver) throws Exception {
        return switch (args.text("source")) {
            case "tubemq" -> new BenchFromTube(args, receiver);
            case "pulsar" -> new BenchFromPulsar(args, receiver);
            default -> new BenchFromRocket(args, receiver);
        };
    }
}
