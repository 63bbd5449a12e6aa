package mqbridge.tests;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;

/** Message bodies that a test can predict: the sequence number in 8 bytes, big-endian, then the bytes 0, 1, … 250 over and over. */
final class Body {
    static final int SMALLEST = Long.BYTES;
    // A prime, so that the fill does not line up with pages, blocks or the bodies' own sizes.
    private static final int PERIOD = 251;

    private final byte[] template;

    Body(int size) {
        if (size < SMALLEST) {
            throw new IllegalArgumentException("--size must be at least " + SMALLEST + ", is " + size);
        }
        template = new byte[size];
        for (int i = SMALLEST; i < size; i++) {
            template[i] = (byte) ((i - SMALLEST) % PERIOD);
        }
    }

    byte[] of(long sequence) {
        byte[] body = Arrays.copyOf(template, template.length);
        ByteBuffer.wrap(body).putLong(sequence);
        return body;
    }

    /** Adds the body to a line under {@code body} (base64), or {@code sha256} and {@code size} when only the digest is wanted. */
    static void describe(Map<String, Object> line, byte[] body, boolean digest) {
        if (!digest) {
            line.put("body", Base64.getEncoder().encodeToString(body));
            return;
        }
        try {
            line.put("sha256", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body)));
            line.put("size", body.length);
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError("every JRE has SHA-256", impossible);
        }
    }

    /** Replaces {@code {n}} by the sequence number. */
    static String numbered(String template, long sequence) {
        return template.contains("{n}") ? template.replace("{n}", Long.toString(sequence)) : template;
    }
}
