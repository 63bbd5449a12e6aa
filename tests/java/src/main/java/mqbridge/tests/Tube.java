package mqbridge.tests;

import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;

/** What the TubeMQ programs share. */
final class Tube {
    private Tube() {}

    /** The SDK declares that a shutdown throws anything. */
    static void shutdown(PullMessageConsumer consumer) throws Exception {
        try {
            consumer.shutdown();
        } catch (Exception | Error thrown) {
            throw thrown;
        } catch (Throwable thrown) {
            throw new IllegalStateException("the consumer did not shut down", thrown);
        }
    }
}
