package mqbridge.tests;

import org.apache.inlong.tubemq.corebase.utils.DateTimeConvertUtils;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * What becomes of a TubeMQ message of one pack in Pulsar: every attribute pair a property of the same name, the attribute string whole
 * in {@code mqbridge.attributes}, where it came from in {@code mqbridge.origin}, and {@code $msgTime$} the event time.
 *
 * <p>The string is read here in one pass: the SDK's getters would split it by regular expression once per attribute.
 */
final class BridgeMapping {
    private static final String MSG_TIME = "$msgTime$";

    private final String origin;
    private int index;
    private String lastTime = "";
    private long lastMillis;

    /** {@code origin} is that of the pack, to which the place in the pack is added. */
    BridgeMapping(String origin) {
        this.origin = origin;
    }

    void apply(String attributes, TypedMessageBuilder<byte[]> out) {
        if (attributes != null) {
            pairs(attributes, out);
            out.property("mqbridge.attributes", attributes);
        }
        out.property("mqbridge.origin", origin + index++);
    }

    private void pairs(String attributes, TypedMessageBuilder<byte[]> out) {
        int length = attributes.length();
        for (int start = 0; start < length; ) {
            int comma = attributes.indexOf(',', start);
            int end = comma < 0 ? length : comma;
            int equals = attributes.indexOf('=', start);
            if (equals > start && equals < end) {
                String name = attributes.substring(start, equals);
                String value = attributes.substring(equals + 1, end);
                out.property(name, value);
                if (name.equals(MSG_TIME)) {
                    out.eventTime(millis(value));
                }
            }
            start = end + 1;
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
