package mqbridge.tests;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * A route's rules in front of a sink, as the benchmark sets them: messages whose zone is eu-4 are left out; title is removed, trace renamed,
 * label set from two others; the partition follows from the property user.
 *
 * <p>A message is known when the next one begins, so its parts are gathered first. What goes to several partitions is stored side by side.
 */
final class BridgeRules implements BridgeSink {
    private static final String LEFT_OUT = "eu-4";

    private final BridgeSink sink;
    private final int partitions;
    private final ExecutorService storing = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "store");
        thread.setDaemon(true);
        return thread;
    });

    BridgeRules(BridgeSink sink, int partitions) {
        this.sink = sink;
        this.partitions = partitions;
    }

    @Override
    public BridgeSink.Pack pack(int partition) {
        return new Pack(partition);
    }

    @Override
    public void close() throws IOException {
        storing.shutdown();
        sink.close();
    }

    private final class Pack implements BridgeSink.Pack {
        private final int partition;
        private final Map<Integer, BridgeSink.Pack> packs = new TreeMap<>();
        private final List<String> names = new ArrayList<>();
        private final List<String> values = new ArrayList<>();
        private boolean begun;
        private byte[] body;
        private String type;
        private String key;
        private String keys;
        private long eventTime;
        private boolean timed;

        Pack(int partition) {
            this.partition = partition;
        }

        @Override
        public void message(byte[] next) throws Exception {
            pass();
            begun = true;
            body = next;
            names.clear();
            values.clear();
            type = null;
            key = null;
            keys = null;
            timed = false;
        }

        @Override
        public void property(String name, String value) {
            names.add(name);
            values.add(value);
        }

        @Override
        public void type(String given) {
            type = given;
        }

        @Override
        public void key(String given) {
            key = given;
        }

        @Override
        public void keys(String given) {
            keys = given;
        }

        @Override
        public void eventTime(long millis) {
            eventTime = millis;
            timed = true;
        }

        private String value(String name) {
            int index = names.indexOf(name);
            return index < 0 ? null : values.get(index);
        }

        private void pass() throws Exception {
            if (!begun || LEFT_OUT.equals(value("zone"))) {
                return;
            }
            String user = value("user");
            BridgeSink.Pack out = packOf(user == null ? partition : Math.floorMod(user.hashCode(), partitions));
            out.message(body);
            for (int i = 0; i < names.size(); i++) {
                switch (names.get(i)) {
                    case "title", "label" -> { }
                    case "trace" -> out.property("trace_id", values.get(i));
                    default -> out.property(names.get(i), values.get(i));
                }
            }
            if (user != null && value("zone") != null) {
                out.property("label", value("zone") + "/" + user);
            }
            passFields(out);
        }

        private void passFields(BridgeSink.Pack out) {
            if (type != null) {
                out.type(type);
            }
            if (key != null) {
                out.key(key);
            }
            if (keys != null) {
                out.keys(keys);
            }
            if (timed) {
                out.eventTime(eventTime);
            }
        }

        private BridgeSink.Pack packOf(int target) throws Exception {
            BridgeSink.Pack found = packs.get(target);
            if (found == null) {
                found = sink.pack(target);
                packs.put(target, found);
            }
            return found;
        }

        @Override
        public boolean store() throws Exception {
            pass();
            begun = false;
            List<Future<Boolean>> stored = new ArrayList<>();
            for (BridgeSink.Pack pack : packs.values()) {
                stored.add(packs.size() > 1 ? storing.submit(pack::store) : CompletableFuture.completedFuture(pack.store()));
            }
            boolean all = true;
            for (Future<Boolean> one : stored) {
                all &= one.get();
            }
            return all;
        }
    }
}
