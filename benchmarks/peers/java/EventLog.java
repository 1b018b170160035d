import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Which handlers began and ended, in order, written by all worker threads at once; the file is one of
 * aioparallel.testing.event_log, without times.
 *
 * <p>A place is taken before it is filled, so the order of two events is the order of their places whenever one of
 * them happened before the other; the log of a key whose records overlap shows the overlap.
 */
final class EventLog {
    private static final long BEGAN = 1;
    private static final long ENDED = 2;
    /** Words written to the file at once. */
    private static final int CHUNK = 8_192;

    private final long[] words;
    private final AtomicInteger next = new AtomicInteger(1);

    /** {@code room}: at least as many as there are events. */
    EventLog(int room) {
        words = new long[1 + room];
        words[0] = 1;
    }

    void began(int partition, long offset) {
        words[next.getAndIncrement()] = BEGAN << 62 | (long) partition << 44 | offset;
    }

    void ended(int partition, long offset) {
        words[next.getAndIncrement()] = ENDED << 62 | (long) partition << 44 | offset;
    }

    /** To be called when the worker threads have ended. */
    void write(Path file) throws IOException {
        var bytes = ByteBuffer.allocate(CHUNK * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        var end = Math.min(next.get(), words.length);
        try (var channel = FileChannel.open(file, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW)) {
            for (var from = 0; from < end; from += CHUNK) {
                var count = Math.min(CHUNK, end - from);
                bytes.clear().limit(count * Long.BYTES);
                bytes.asLongBuffer().put(words, from, count);
                while (bytes.hasRemaining()) {
                    channel.write(bytes);
                }
            }
        }
    }
}
