import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group, through Kafka's own consumer.
 *
 * <p>Arguments: bootstrap servers, topic, group, "consumer" or "classic".
 *
 * <p>Writes "has", "gone" and "lost" with partitions when its partitions change, and "ran PARTITION OFFSET" for each
 * record. Commits after each poll. A line of input, or its end, lets it leave the group.
 */
public final class GroupMember {
    private GroupMember() {}

    public static void main(String[] arguments) {
        var properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[2]);
        properties.put("group.protocol", arguments[3]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        if (arguments[3].equals("classic")) {
            properties.put("session.timeout.ms", "6000");
            properties.put("heartbeat.interval.ms", "300");
        }
        var consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        wakeUpAtInput(consumer);
        consumer.subscribe(List.of(arguments[1]), new Telling());
        try {
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(record -> System.out.println("ran " + record.partition() + " " + record.offset()));
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
            }
        } catch (WakeupException asked) {
            consumer.close();
        }
    }

    private static void wakeUpAtInput(KafkaConsumer<?, ?> consumer) {
        var waiting = new Thread(() -> {
            try {
                System.in.read();
            } catch (IOException broken) {
                // as its end
            }
            consumer.wakeup();
        });
        waiting.setDaemon(true);
        waiting.start();
    }

    private static final class Telling implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("has", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("gone", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            tell("lost", partitions);
        }

        private static void tell(String what, Collection<TopicPartition> partitions) {
            var numbers = partitions.stream().map(one -> " " + one.partition()).collect(Collectors.joining());
            System.out.println(what + numbers);
        }
    }
}
