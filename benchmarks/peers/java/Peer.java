import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.PollContext;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Deserializer;

/**
 * The Java Parallel Consumer as a contestant: {@code Peer <work.json>}, then the lines of {@code contestant.py}.
 *
 * <p>All rounds run in this one JVM, which is cold in the first of them only. What the work does not say is left at
 * the library's and the client's defaults, which are what its documentation recommends.
 */
public final class Peer {
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);
    private static final Gson JSON = new GsonBuilder()
            .setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES)
            .create();

    /** A line of the benchmark: one round, for a new group. */
    record Order(int round, String group, String log, String output) {}

    /** The line that answers; see Run in {@code measures.py}. */
    record Answer(
            int round,
            double seconds,
            double wholeSeconds,
            int ended,
            double cpuSeconds,
            long peakMemory,
            boolean stopped) {}

    private final Work work;
    private final int[][] milliseconds;

    private Peer(Work work) throws IOException {
        this.work = work;
        this.milliseconds = work.readMilliseconds();
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        var peer = new Peer(JSON.fromJson(Files.readString(Path.of(arguments[0])), Work.class));
        var lines = new LinkedBlockingQueue<String>();
        var reader = new Thread(() -> read(lines), "orders");
        reader.setDaemon(true);
        reader.start();
        while (true) {
            var order = JSON.fromJson(lines.take(), Order.class);
            System.out.println(JSON.toJson(peer.answer(order)));
            System.out.flush();
        }
    }

    /** The end of the input is the end of this process, in the middle of a round too: nobody waits for it any more. */
    private static void read(LinkedBlockingQueue<String> lines) {
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            input.lines().forEach(lines::add);
        } catch (IOException | UncheckedIOException unreadable) {
            System.err.println(unreadable);
        } finally {
            Runtime.getRuntime().halt(0);
        }
    }

    private Object answer(Order order) {
        try {
            return run(order);
        } catch (Exception | OutOfMemoryError error) {
            error.printStackTrace();
            return Map.of("round", order.round(), "error", error.toString());
        }
    }

    private Answer run(Order order) throws IOException, InterruptedException {
        var job = new Job(work, milliseconds);
        // Gson is the deserialiser of the values where they are to be decoded.
        var inTime = work.isDecoding()
                ? consume(order, job, (topic, bytes) ->
                        JSON.fromJson(new String(bytes, StandardCharsets.UTF_8), JsonObject.class))
                : consume(order, job, new ByteArrayDeserializer());
        job.log().write(Path.of(order.log()));
        return new Answer(
                order.round(),
                job.seconds(),
                job.wholeSeconds(),
                job.ended(),
                job.cpuSeconds(),
                peakMemory(),
                !inTime);
    }

    /** Whether all was done within the work's limit. */
    private <V> boolean consume(Order order, Job job, Deserializer<V> values) throws InterruptedException {
        var options = ParallelConsumerOptions.<byte[], V>builder()
                .consumer(open(order.group(), values))
                .ordering(ProcessingOrder.valueOf(work.ordering().toUpperCase(Locale.ROOT)))
                .maxConcurrency(work.concurrency());
        if (work.isProducing()) {
            options.producer(new KafkaProducer<>(
                    Map.of("bootstrap.servers", work.bootstrapServers()),
                    new ByteArraySerializer(),
                    (topic, value) -> (byte[]) value));
        }
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options.build());
        processor.subscribe(List.of(work.topic()));
        if (work.isProducing()) {
            processor.pollAndProduce(
                    context -> {
                        handle(job, context);
                        var record = context.getSingleConsumerRecord();
                        return new ProducerRecord<>(order.output(), record.key(), record.value());
                    },
                    acknowledged -> job.finished());
        } else {
            processor.poll(context -> handle(job, context));
        }
        var inTime = job.await();
        if (inTime) {
            processor.closeDrainFirst(CLOSE_TIMEOUT);
        } else {
            processor.closeDontDrainFirst(CLOSE_TIMEOUT);
        }
        return inTime;
    }

    private static <V> void handle(Job job, PollContext<byte[], V> context) {
        var record = context.getSingleConsumerRecord();
        try {
            job.handle(record.partition(), record.offset());
        } catch (InterruptedException closed) {
            throw new IllegalStateException("interrupted by the close of a run that was stopped", closed);
        }
    }

    private <V> KafkaConsumer<byte[], V> open(String group, Deserializer<V> values) {
        return new KafkaConsumer<>(
                Map.of(
                        "bootstrap.servers", work.bootstrapServers(),
                        "group.id", group,
                        "enable.auto.commit", "false",
                        "auto.offset.reset", "earliest"),
                new ByteArrayDeserializer(),
                values);
    }

    private static long peakMemory() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            var line = lines.filter(each -> each.startsWith("VmHWM")).findFirst().orElseThrow();
            return Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
        }
    }
}
