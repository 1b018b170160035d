import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * What is to be done, as {@code work.json} says it; see {@code benchmarks/contestant.py}.
 *
 * @param limit seconds after the first call of the handler when a run that has not ended is stopped
 */
record Work(
        String bootstrapServers,
        String topic,
        int partitions,
        int records,
        String ordering,
        int concurrency,
        String handler,
        String sleeps,
        double limit) {

    boolean isSleeping() {
        return handler.equals("sleep");
    }

    boolean isProducing() {
        return handler.equals("produce");
    }

    boolean isDecoding() {
        return handler.equals("json");
    }

    /** The handlers' milliseconds by partition and offset. Java sleeps in whole ones, and so do the plans. */
    int[][] readMilliseconds() throws IOException {
        var found = new int[partitions][];
        for (var partition = 0; partition < partitions; partition++) {
            var bytes = Files.readAllBytes(Path.of(sleeps, partition + ".bin"));
            var planned = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
            found[partition] = new int[planned.remaining()];
            for (var offset = 0; offset < found[partition].length; offset++) {
                found[partition][offset] = planned.get(offset) / 1000;
            }
        }
        return found;
    }
}
