import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's own share consumer as a contestant of {@code benchmarks/share.py}: {@code Share SERVERS TOPIC THREADS ACQUIRE},
 * then a line for each run: {@code GROUP COUNT LIMIT MILLISECONDS SLOW EVERY LOG}.
 *
 * <p>Every record is acknowledged by itself. Before the next poll all records of the last one must be, so a poll ends
 * with its slowest record. A handler that returns at once is called by the polling thread.
 */
public final class Share {
    private static final int SPARE = 100_000;
    /** Nanoseconds until the first record. */
    private static final long START = 60_000_000_000L;

    private final String servers;
    private final String topic;
    private final int threads;
    private final String acquire;
    private final ExecutorService pool;

    private Share(String[] given) {
        servers = given[0];
        topic = given[1];
        threads = Integer.parseInt(given[2]);
        acquire = given[3];
        pool = Executors.newFixedThreadPool(threads);
    }

    public static void main(String[] arguments) throws Exception {
        var share = new Share(arguments);
        try (var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (var line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println(share.run(line.split(" ")));
                System.out.flush();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(String[] given) throws Exception {
        var count = Integer.parseInt(given[1]);
        var limit = (long) (Double.parseDouble(given[2]) * 1e9);
        var milliseconds = Integer.parseInt(given[3]);
        var slow = Integer.parseInt(given[4]);
        var every = Integer.parseInt(given[5]);
        var log = new EventLog(2 * count + SPARE);
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long first = 0;
        long now = System.nanoTime();
        var started = now;
        var ended = 0;
        double cpu = 0;
        try (var consumer = open(given[0])) {
            consumer.subscribe(List.of(topic));
            while (ended < count && (first == 0 ? now - started < START : now - first < limit)) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (first == 0 && !records.isEmpty()) {
                    first = System.nanoTime();
                    cpu = system.getProcessCpuTime();
                }
                handle(records, log, milliseconds, slow, every);
                records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
                ended += records.count();
                now = System.nanoTime();
            }
            cpu = system.getProcessCpuTime() - cpu;
            consumer.commitSync(Duration.ofSeconds(30)).forEach((partition, error) -> error.ifPresent(one -> {
                throw one;
            }));
        }
        log.write(Path.of(given[6]));
        return String.format(
                Locale.ROOT, "{\"seconds\": %f, \"ended\": %d, \"cpu\": %f}", (now - first) / 1e9, ended, cpu / 1e9);
    }

    private void handle(ConsumerRecords<byte[], byte[]> records, EventLog log, int milliseconds, int slow, int every)
            throws InterruptedException {
        if (milliseconds == 0) {
            for (var record : records) {
                log.began(record.partition(), record.offset());
                log.ended(record.partition(), record.offset());
            }
            return;
        }
        var left = new CountDownLatch(records.count());
        for (var record : records) {
            pool.execute(() -> {
                log.began(record.partition(), record.offset());
                sleep(every > 0 && record.offset() % every == 0 ? slow : milliseconds);
                log.ended(record.partition(), record.offset());
                left.countDown();
            });
        }
        left.await();
    }

    private static void sleep(int milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException never) {
            throw new IllegalStateException(never);
        }
    }

    private KafkaShareConsumer<byte[], byte[]> open(String group) {
        return new KafkaShareConsumer<>(
                Map.of(
                        "bootstrap.servers", servers,
                        "group.id", group,
                        "share.acknowledgement.mode", "explicit",
                        "share.acquire.mode", acquire,
                        "max.poll.records", threads),
                new ByteArrayDeserializer(),
                new ByteArrayDeserializer());
    }
}
