package aioparallel.bench;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Which handlers began and ended, in order, written by all worker threads at once.
 *
 * <p>A place is taken before it is filled, so the order of two events is the order of their places whenever one of
 * them happened before the other; the evidence of a key whose records overlap shows the overlap.
 */
final class Evidence {
    /** Places for records that come twice, so that the benchmark can say which. */
    private static final int SPARE = 100_000;

    private final int[][] events;
    private final AtomicInteger[] counts;

    /** {@code perPartition}: at least as many as there are events in any one partition. */
    Evidence(int partitions, int perPartition) {
        events = new int[partitions][perPartition + SPARE];
        counts = new AtomicInteger[partitions];
        for (var partition = 0; partition < partitions; partition++) {
            counts[partition] = new AtomicInteger();
        }
    }

    void began(int partition, long offset) {
        events[partition][counts[partition].getAndIncrement()] = (int) offset;
    }

    void ended(int partition, long offset) {
        events[partition][counts[partition].getAndIncrement()] = ~(int) offset;
    }

    /** A file for each partition. To be called when the worker threads have ended. */
    void write(Path folder) throws IOException {
        for (var partition = 0; partition < events.length; partition++) {
            var count = Math.min(counts[partition].get(), events[partition].length);
            var bytes = ByteBuffer.allocate(count * Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN);
            bytes.asIntBuffer().put(events[partition], 0, count);
            Files.write(folder.resolve("partition-" + partition + ".bin"), bytes.array());
        }
    }
}
