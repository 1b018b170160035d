package aioparallel.interop;

import io.confluent.parallelconsumer.PCRetriableException;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.RecordContext;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group through the Java library, some of whose records never succeed.
 *
 * <p>Arguments: bootstrap servers, topic, group, ordering (KEY, UNORDERED, PARTITION), and a file of the stuck
 * records, one "partition offset" a line.
 *
 * <p>Writes "ran partition offset" for each call of the handler that succeeds and "stuck partition offset" for each
 * that fails; they fail once, as their retry is an hour away. The line "close" on its input closes it as its own
 * close() does, without a drain but with a last commit; then it writes "closed". The end of its input ends it at once.
 */
public final class StuckConsumer {
    private static final Duration NEVER = Duration.ofHours(1);
    private static final Duration COMMIT_INTERVAL = Duration.ofMillis(200);
    /** Above the number of stuck records of any test: those that wait for a retry count against the buffer. */
    private static final int BUFFER = 60_000;

    private record Place(int partition, long offset) {}

    private StuckConsumer() {}

    public static void main(String[] arguments) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        var stuck = readPlaces(Path.of(arguments[4]));
        var processor = open(arguments[0], arguments[2], ProcessingOrder.valueOf(arguments[3]));
        processor.subscribe(List.of(arguments[1]));
        processor.poll(context -> handle(context.getSingleRecord(), stuck));
        if ("close".equals(input.readLine())) {
            processor.closeDontDrainFirst();
            System.out.println("closed");
        }
        System.out.flush();
        // Whoever read our output is gone, or has all it wants: threads of the library must not keep us.
        Runtime.getRuntime().halt(0);
    }

    private static void handle(RecordContext<byte[], byte[]> record, Set<Place> stuck) {
        var fails = stuck.contains(new Place(record.partition(), record.offset()));
        System.out.println((fails ? "stuck " : "ran ") + record.partition() + " " + record.offset());
        if (fails) {
            throw new PCRetriableException("stuck, as the test wants it");
        }
    }

    private static ParallelStreamProcessor<byte[], byte[]> open(String servers, String group, ProcessingOrder order) {
        var consumer = new KafkaConsumer<byte[], byte[]>(
                Map.of(
                        "bootstrap.servers", servers,
                        "group.id", group,
                        "enable.auto.commit", "false",
                        "auto.offset.reset", "earliest",
                        "max.poll.records", "5000"),
                new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
        return ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(consumer)
                        .ordering(order)
                        .commitMode(CommitMode.PERIODIC_CONSUMER_SYNC)
                        .commitInterval(COMMIT_INTERVAL)
                        .maxConcurrency(8)
                        .messageBufferSize(BUFFER)
                        .defaultMessageRetryDelay(NEVER)
                        .build());
    }

    private static Set<Place> readPlaces(Path file) throws IOException {
        var places = new HashSet<Place>();
        for (var line : Files.readAllLines(file)) {
            var words = line.split(" ");
            places.add(new Place(Integer.parseInt(words[0]), Long.parseLong(words[1])));
        }
        return places;
    }
}
