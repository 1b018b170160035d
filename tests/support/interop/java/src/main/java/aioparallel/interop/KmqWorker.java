package aioparallel.interop;

import com.softwaremill.kmq.KafkaClients;
import com.softwaremill.kmq.KmqClient;
import com.softwaremill.kmq.KmqConfig;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A consumer of a queue through KMQ's own client.
 *
 * <p>Arguments: bootstrap servers, queue, marker topic, group, the lease in milliseconds.
 *
 * <p>Writes "ran partition offset value" for each record that it has acknowledged, and "left partition offset value" for
 * one whose value begins with "fails" and that it has not seen before: it writes no end marker for that. The end of its
 * input ends it at once.
 */
public final class KmqWorker {
    private static final long NO_TRACKER = 1_000;
    private static final long POLL = 100;

    private KmqWorker() {}

    public static void main(String[] arguments) throws ExecutionException, InterruptedException {
        var config = new KmqConfig(
                arguments[1], arguments[2], arguments[3], "unused", Long.parseLong(arguments[4]), NO_TRACKER);
        endWithInput();
        var client = new KmqClient<byte[], byte[]>(
                config,
                new KafkaClients(arguments[0]),
                ByteArrayDeserializer.class,
                ByteArrayDeserializer.class,
                POLL);
        var left = new HashSet<String>();
        while (true) {
            for (var record : client.nextBatch()) {
                var value = new String(record.value(), StandardCharsets.US_ASCII);
                if (value.startsWith("fails") && left.add(value)) {
                    say("left", record, value);
                } else {
                    client.processed(record).get();
                    say("ran", record, value);
                }
            }
        }
    }

    private static void say(String what, ConsumerRecord<byte[], byte[]> record, String value) {
        System.out.println(what + " " + record.partition() + " " + record.offset() + " " + value);
    }

    /** Its threads do not keep it. */
    private static void endWithInput() {
        var waiting = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (IOException broken) {
                // as its end
            }
            Runtime.getRuntime().halt(0);
        });
        waiting.setDaemon(true);
        waiting.start();
    }
}
