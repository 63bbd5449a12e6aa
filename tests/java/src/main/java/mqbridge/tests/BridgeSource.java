package mqbridge.tests;

/** The reading end of a bridge: takes what arrived in one partition, has the sink store it, then acknowledges it. */
interface BridgeSource {
    /** Returns when the bridge is over; throws what stopped it. */
    void run(BridgeSink sink) throws Exception;
}
