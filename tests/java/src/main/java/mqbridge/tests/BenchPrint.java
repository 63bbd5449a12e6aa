package mqbridge.tests;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.LongStream;

/** No topic: prints the messages instead, a line each. */
final class BenchPrint implements BenchSink {
    private final BenchCorpus corpus;

    BenchPrint(BenchCorpus corpus) {
        this.corpus = corpus;
    }

    @Override
    public void send(long first, int count) {
        LongStream.range(first, first + count).forEach(number -> {
            BenchCorpus.Drawn drawn = corpus.message(number);
            List<List<String>> properties = drawn.properties().stream().map(pair -> List.of(pair.getKey(), pair.getValue())).toList();
            Program.print(Program.object("number", number, "body", new String(drawn.body(), StandardCharsets.US_ASCII),
                    "key", drawn.key(), "type", drawn.type(), "oddity", drawn.oddity().name(), "properties", properties));
        });
    }

    @Override
    public void flush() {}

    @Override
    public void close() {}
}
