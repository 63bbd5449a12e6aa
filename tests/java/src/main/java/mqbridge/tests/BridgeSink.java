package mqbridge.tests;

import java.io.IOException;

/** The writing end of a bridge. Partition p of the source goes to partition p of the target, if the client lets one choose. */
interface BridgeSink extends AutoCloseable {
    /** Begins a pack: consecutive messages of one partition that are stored together; for one thread, one pack per partition at a time. */
    Pack pack(int partition) throws Exception;

    @Override
    void close() throws IOException;

    /** {@link #message} begins a message, the other calls say what it has besides its body. */
    interface Pack {
        void message(byte[] body) throws Exception;

        void property(String name, String value);

        /** TubeMQ's message type, RocketMQ's tags. */
        void type(String type);

        /** What the message is routed by. */
        void key(String key);

        /** What it is looked up by: RocketMQ's keys, separated by blanks. */
        void keys(String keys);

        /** ms. */
        void eventTime(long millis);

        /** Sends what is not sent yet and waits; false when a message was not stored, and the pack has to come again. */
        boolean store() throws Exception;
    }
}
