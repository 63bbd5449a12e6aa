package mqbridge.tests;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** What every program shares: JSON lines on stdout, errors on stderr with exit code 1. */
final class Program {
    interface Main {
        void run(Args args) throws Exception;
    }

    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final PrintWriter OUT = new PrintWriter(new BufferedWriter(
            new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8), 1 << 16));

    private Program() {}

    /** Runs and ends the process: both clients leave threads behind that would keep it alive. */
    static void main(String[] argv, Main main) {
        int code = 0;
        try {
            main.run(new Args(argv));
        } catch (Throwable failure) {
            failure.printStackTrace();
            explain(failure);
            code = 1;
        }
        OUT.flush();
        Runtime.getRuntime().halt(code);
    }

    /** The causes once more, last on stderr: the trace of a client is longer than what its reader keeps. */
    private static void explain(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            System.err.println((cause == failure ? "failed: " : "  because: ") + cause);
        }
    }

    /** Keys and values alternate; printed in this order. */
    static Map<String, Object> object(Object... keysAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int i = 0; i < keysAndValues.length; i += 2) {
            object.put((String) keysAndValues[i], keysAndValues[i + 1]);
        }
        return object;
    }

    /** A line among many, buffered. */
    static synchronized void print(Map<String, Object> object) {
        OUT.println(GSON.toJson(object));
    }

    static synchronized void flush() {
        OUT.flush();
    }

    /** A line that somebody may be waiting for. */
    static void printNow(Map<String, Object> object) {
        print(object);
        flush();
    }
}
