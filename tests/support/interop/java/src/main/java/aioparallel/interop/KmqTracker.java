package aioparallel.interop;

import com.softwaremill.kmq.KafkaClients;
import com.softwaremill.kmq.KmqConfig;
import com.softwaremill.kmq.RedeliveryTracker;
import java.io.IOException;

/**
 * KMQ's own redelivery tracker.
 *
 * <p>Arguments: bootstrap servers, queue, marker topic, group. Writes "tracks" once it is started. The end of its input
 * ends it at once.
 */
public final class KmqTracker {
    /** Milliseconds; of no meaning for a tracker, which goes by the markers. */
    private static final long LEASE = 1;

    private static final long USE_NOW_AFTER = 1_000;

    private KmqTracker() {}

    public static void main(String[] arguments) throws IOException {
        var config = new KmqConfig(arguments[1], arguments[2], "unused", arguments[3], LEASE, USE_NOW_AFTER);
        RedeliveryTracker.start(new KafkaClients(arguments[0]), config);
        System.out.println("tracks");
        while (System.in.read() >= 0) {}
        Runtime.getRuntime().halt(0);
    }
}
