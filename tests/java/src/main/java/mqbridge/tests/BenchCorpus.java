package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * Messages as applications write them, drawn from a seed: the same options and number give the same message, whichever thread asks.
 *
 * <pre>
 * --seed 1
 * --payload 1000      --payload-least 1000   bytes of bodies, from the least to the most, small ones as often as large ones
 * --properties 5      --properties-least 5   per message
 * --names 5                                  that there are; a message has some of them, in any order
 * --keyed 100  --typed 100  --unicode 20  --odd 0   per cent of the messages
 * </pre>
 */
final class BenchCorpus {
    /** What is unusual about a message; a client that refuses it writes the message without. */
    enum Oddity { NONE, EMPTY_VALUE, SEPARATORS, RESERVED_NAMES, REPEATED_NAME, LONG_VALUE, BARE, NULL_PAYLOAD, EMPTY_BODY, DELAYED, OTHER_KEY }

    /** One message; without key or type they are null. */
    record Drawn(byte[] body, List<Map.Entry<String, String>> properties, String key, String type, Oddity oddity) {}

    /** A body begins with the number of the message in so many hexadecimal digits. */
    static final int NUMBER_DIGITS = 16;

    private static final int WORDS = 500;
    private static final int TEXT_BYTES = 1 << 18;
    private static final int KEYS = 1000;
    private static final String[] ZONES = {"eu-1", "eu-2", "eu-3", "eu-4"};
    private static final String[] TYPES = {"created", "paid", "shipped"};
    private static final String[] UNICODE = {"grün", "naïve", "价格", "注文番号", "Ωmega", "😀", "ж", "ąćę"};
    private static final String[] COMMON_NAMES = {"zone", "user", "trace", "seq", "title"};
    private static final String[] RESERVED = {"mqbridge.key", "mqbridge.x.KEYS", "KEYS", "WAIT", "UNIQ_KEY", "TAGS", "%", "__proto"};
    private static final Oddity[] ODDITIES = Oddity.values();

    private final long seed;
    private final int payload;
    private final int payloadLeast;
    private final int properties;
    private final int propertiesLeast;
    private final int keyed;
    private final int typed;
    private final int unicode;
    private final int odd;
    private final String[] words = new String[WORDS];
    private final String[] names;
    private final byte[] text;

    BenchCorpus(Args args) {
        seed = args.number("seed", 1);
        payload = args.count("payload", 1000);
        payloadLeast = args.count("payload-least", payload);
        properties = args.count("properties", 5);
        propertiesLeast = args.count("properties-least", properties);
        keyed = args.count("keyed", 100);
        typed = args.count("typed", 100);
        unicode = args.count("unicode", 20);
        odd = args.count("odd", 0);
        names = new String[args.count("names", properties)];
        if (properties > names.length || payloadLeast < NUMBER_DIGITS) {
            throw new IllegalArgumentException("--names must be at least --properties, --payload-least at least " + NUMBER_DIGITS);
        }
        SplittableRandom random = new SplittableRandom(seed);
        for (int i = 0; i < WORDS; i++) {
            words[i] = letters(random, 1 + random.nextInt(11));
        }
        for (int i = 0; i < names.length; i++) {
            names[i] = i < COMMON_NAMES.length ? COMMON_NAMES[i] : i + "-" + letters(random, 1 + random.nextInt(30));
        }
        text = prose(random, Math.max(TEXT_BYTES, 2 * payload)).getBytes(StandardCharsets.US_ASCII);
    }

    private static String letters(SplittableRandom random, int count) {
        StringBuilder made = new StringBuilder();
        for (int i = 0; i < count; i++) {
            made.append((char) ('a' + random.nextInt(26)));
        }
        return made.toString();
    }

    /** Words and numbers as in JSON; compresses to about a third. */
    private String prose(SplittableRandom random, int length) {
        StringBuilder made = new StringBuilder(length + 64);
        while (made.length() < length) {
            made.append('"').append(words[random.nextInt(WORDS)]).append("\":").append(random.nextInt(1_000_000)).append(", ");
        }
        return made.substring(0, length);
    }

    Drawn message(long number) {
        SplittableRandom random = new SplittableRandom(seed * 1_000_003 + number);
        Oddity oddity = chance(random, odd) ? ODDITIES[1 + random.nextInt(ODDITIES.length - 1)] : Oddity.NONE;
        byte[] body = body(random, number);
        if (oddity == Oddity.BARE) {
            return new Drawn(body, List.of(), null, null, oddity);
        }
        String key = chance(random, keyed) ? "order-" + random.nextInt(KEYS) : null;
        String type = chance(random, typed) ? TYPES[random.nextInt(TYPES.length)] : null;
        return new Drawn(body, pairs(random, number, oddity), key, type, oddity);
    }

    private static boolean chance(SplittableRandom random, int percent) {
        return random.nextInt(100) < percent;
    }

    private byte[] body(SplittableRandom random, long number) {
        int size = payload;
        if (payloadLeast < payload) {
            size = (int) Math.round(payloadLeast * Math.pow((double) payload / payloadLeast, random.nextDouble()));
        }
        byte[] body = new byte[size];
        System.arraycopy(HexFormat.of().toHexDigits(number).getBytes(StandardCharsets.US_ASCII), 0, body, 0, NUMBER_DIGITS);
        System.arraycopy(text, random.nextInt(text.length - size), body, NUMBER_DIGITS, size - NUMBER_DIGITS);
        return body;
    }

    private List<Map.Entry<String, String>> pairs(SplittableRandom random, long number, Oddity oddity) {
        int count = propertiesLeast + random.nextInt(properties - propertiesLeast + 1);
        List<Map.Entry<String, String>> pairs = new ArrayList<>(count + 3);
        // A step that has no divisor in common with the number of names passes each of them once.
        int index = count == 0 ? 0 : random.nextInt(names.length);
        int step = count == names.length ? 1 : stepOf(random, names.length);
        for (int i = 0; i < count; i++, index = (index + step) % names.length) {
            pairs.add(Map.entry(names[index], value(random, index, number)));
        }
        switch (oddity) {
            case EMPTY_VALUE -> pairs.add(Map.entry("empty", ""));
            case SEPARATORS -> {
                pairs.add(Map.entry("a,b=c", "x\u0001y\u0002z"));
                pairs.add(Map.entry("list", "a=1,b=2,%2C"));
            }
            case RESERVED_NAMES -> pairs.add(Map.entry(RESERVED[random.nextInt(RESERVED.length)], words[random.nextInt(WORDS)]));
            case REPEATED_NAME -> {
                pairs.add(Map.entry("again", "1"));
                pairs.add(Map.entry("again", "2"));
            }
            case LONG_VALUE -> pairs.add(Map.entry("long", prose(random, 3000).replace(',', ';')));
            default -> { }
        }
        return pairs;
    }

    private static int stepOf(SplittableRandom random, int length) {
        int step = 1 + random.nextInt(length);
        while (divisor(step, length) != 1) {
            step++;
        }
        return step;
    }

    private static int divisor(int a, int b) {
        return b == 0 ? a : divisor(b, a % b);
    }

    private String value(SplittableRandom random, int index, long number) {
        return switch (index % 6) {
            case 0 -> ZONES[random.nextInt(ZONES.length)];
            case 1 -> "u-" + random.nextInt(KEYS);
            case 2 -> HexFormat.of().toHexDigits(random.nextLong()) + HexFormat.of().toHexDigits(number);
            case 3 -> Long.toString(number);
            case 4 -> title(random);
            default -> "/" + words[random.nextInt(WORDS)] + "/" + words[random.nextInt(WORDS)] + "?id;" + random.nextInt(100_000);
        };
    }

    private String title(SplittableRandom random) {
        StringBuilder made = new StringBuilder(words[random.nextInt(WORDS)]);
        for (int more = random.nextInt(6); more > 0; more--) {
            made.append(' ').append(words[random.nextInt(WORDS)]);
        }
        return chance(random, unicode) ? made + " " + UNICODE[random.nextInt(UNICODE.length)] : made.toString();
    }
}
