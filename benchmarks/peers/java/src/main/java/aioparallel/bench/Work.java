package aioparallel.bench;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * What is to be done, as {@code work.json} says it; see {@code aioparallel/cli/bench/model.py}.
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
        boolean sleeps,
        String plan,
        double limit) {

    /** The handlers' milliseconds by partition and offset. Java sleeps in whole ones, and so do the plans. */
    int[][] readMilliseconds() throws IOException {
        var found = new int[partitions][];
        for (var partition = 0; partition < partitions; partition++) {
            var planned = readPlan(partition);
            found[partition] = new int[planned.remaining() / 2];
            for (var offset = 0; offset < found[partition].length; offset++) {
                found[partition][offset] = planned.get(2 * offset + 1) / 1000;
            }
        }
        return found;
    }

    private IntBuffer readPlan(int partition) throws IOException {
        var bytes = Files.readAllBytes(Path.of(plan, "partition-" + partition + ".bin"));
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
    }
}
