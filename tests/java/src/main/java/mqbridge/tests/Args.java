package mqbridge.tests;

import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Command line of the form {@code --name value}; a name without a value is a flag.
 *
 * <p>Call {@link #end} after the last option was read: a name that nobody asked for is an error, never ignored.
 */
final class Args {
    private final Map<String, String> given = new HashMap<>();
    private final Set<String> read = new HashSet<>();

    Args(String[] argv) {
        for (int i = 0; i < argv.length; i++) {
            if (!argv[i].startsWith("--")) {
                throw new IllegalArgumentException("expected --name, found " + argv[i]);
            }
            boolean flag = i + 1 == argv.length || argv[i + 1].startsWith("--");
            given.put(argv[i].substring(2), flag ? "true" : argv[++i]);
        }
    }

    String text(String name) {
        String value = text(name, null);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String text(String name, String otherwise) {
        read.add(name);
        return given.getOrDefault(name, otherwise);
    }

    long number(String name, long otherwise) {
        return Long.parseLong(text(name, Long.toString(otherwise)));
    }

    int count(String name, int otherwise) {
        return Math.toIntExact(number(name, otherwise));
    }

    boolean flag(String name) {
        return Boolean.parseBoolean(text(name, "false"));
    }

    /** A comma list; empty when the option is absent. */
    List<String> list(String name) {
        String value = text(name, "");
        return value.isEmpty() ? List.of() : Arrays.asList(value.split(","));
    }

    /** {@code k=v,k2=v2} in the order given, where a key may come twice; or a JSON object, whose texts may hold any character. */
    List<Map.Entry<String, String>> pairs(String name) {
        String value = text(name, "");
        if (value.startsWith("{\"")) {
            Set<Map.Entry<String, JsonElement>> object = JsonParser.parseString(value).getAsJsonObject().entrySet();
            return object.stream().map(pair -> Map.entry(pair.getKey(), pair.getValue().getAsString())).toList();
        }
        return list(name).stream().map(pair -> pair.split("=", 2)).map(kv -> {
            if (kv.length != 2) {
                throw new IllegalArgumentException("--" + name + " wants k=v,k=v, found " + kv[0]);
            }
            return Map.entry(kv[0], kv[1]);
        }).toList();
    }

    void end() {
        Set<String> unknown = new HashSet<>(given.keySet());
        unknown.removeAll(read);
        if (!unknown.isEmpty()) {
            throw new IllegalArgumentException("unknown options " + unknown + "; known are " + read);
        }
    }
}
