package mqbridge.tests;

/** A topic that the benchmark fills: each call sends consecutive messages of the corpus as one batch, where the client has batches. */
interface BenchSink extends AutoCloseable {
    /** Sends messages from {@code first} on; several threads may call. */
    void send(long first, int count) throws Exception;

    /** Waits until everything is stored, and throws what was not. */
    void flush() throws Exception;

    static BenchSink of(Args args, BenchCorpus corpus) throws Exception {
        return switch (args.text("sink")) {
            case "tubemq" -> new BenchToTube(args, corpus);
            case "pulsar" -> new BenchToPulsar(args, corpus);
            case "rocketmq" -> new BenchToRocket(args, corpus);
            default -> new BenchPrint(corpus);
        };
    }
}
