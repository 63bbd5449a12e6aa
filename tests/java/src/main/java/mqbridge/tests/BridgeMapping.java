package mqbridge.tests;

import org.apache.inlong.tubemq.corebase.utils.DateTimeConvertUtils;

/**
 * What becomes of the attribute string of a TubeMQ message: every pair a property of the same name, {@code $msgType$} the type,
 * {@code $msgTime$} the event time as well, and the string whole in {@code mqbridge.attributes}.
 *
 * <p>The string is read here in one pass: the SDK's getters would split it by regular expression once per attribute.
 */
final class BridgeMapping {
    static final String MSG_TYPE = "$msgType$";
    static final String MSG_TIME = "$msgTime$";
    static final String ATTRIBUTES = "mqbridge.attributes";
    static final String ORIGIN = "mqbridge.origin";
    static final String KEYS = "mqbridge.keys";
    static final String KEY = "mqbridge.key";
    static final String EVENT_TIME = "mqbridge.event_time";
    static final String NULL = "mqbridge.null";
    static final String EMPTY = "mqbridge.empty";
    /** The body of a message that has none, where it must have one: the clients of TubeMQ and RocketMQ refuse it otherwise. */
    static final byte[] NOTHING = {0};

    private String lastTime = "";
    private long lastMillis;

    void apply(String attributes, BridgeSink.Pack out) {
        int length = attributes.length();
        for (int start = 0; start < length; ) {
            int comma = attributes.indexOf(',', start);
            int end = comma < 0 ? length : comma;
            int equals = attributes.indexOf('=', start);
            if (equals > start && equals < end) {
                pair(attributes.substring(start, equals), attributes.substring(equals + 1, end), out);
            }
            start = end + 1;
        }
        out.property(ATTRIBUTES, attributes);
    }

    private void pair(String name, String value, BridgeSink.Pack out) {
        if (name.equals(MSG_TYPE)) {
            out.type(value);
            return;
        }
        out.property(name, value);
        if (name.equals(MSG_TIME)) {
            out.eventTime(millis(value));
        }
    }

    /** Neighbours mostly share their minute. */
    private long millis(String time) {
        if (!time.equals(lastTime)) {
            lastMillis = DateTimeConvertUtils.yyyyMMddHHmm2ms(time);
            lastTime = time;
        }
        return lastMillis;
    }
}
