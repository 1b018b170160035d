import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** One round: the handler to run, and what it sees. The Java side of {@code Job} in {@code contestant.py}. */
final class Job {
    /** Places for records that come twice, so that the benchmark can say which. */
    private static final int SPARE = 100_000;

    private final Work work;
    private final int[][] milliseconds;
    private final EventLog log;
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicLong first = new AtomicLong();
    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final CountDownLatch ended = new CountDownLatch(1);
    private final long started = System.nanoTime();
    private volatile long firstCpu;
    private volatile long last;
    private volatile long lastCpu;
    private volatile int endedInTime;

    Job(Work work, int[][] milliseconds) {
        this.work = work;
        this.milliseconds = milliseconds;
        this.log = new EventLog(work.records() * (work.isSleeping() ? 2 : 1) + SPARE);
    }

    /** Called by the worker threads. */
    void handle(int partition, long offset) throws InterruptedException {
        if (first.get() == 0 && first.compareAndSet(0, System.nanoTime())) {
            firstCpu = system.getProcessCpuTime();
        }
        log.began(partition, offset);
        if (work.isSleeping()) {
            Thread.sleep(milliseconds[partition][(int) offset]);
            log.ended(partition, offset);
        }
        if (!work.isProducing()) {
            finished();
        }
    }

    /** A record is through: its handler has ended, or its output is acknowledged. */
    void finished() {
        if (count.incrementAndGet() == work.records()) {
            finish(work.records());
            ended.countDown();
        }
    }

    /** Until the last record has ended, or the work's limit is reached; whether it ended. */
    boolean await() throws InterruptedException {
        var limit = (long) (work.limit() * 1e9);
        for (var left = limit; left > 0; left = begin() + limit - System.nanoTime()) {
            if (ended.await(left, TimeUnit.NANOSECONDS)) {
                return true;
            }
        }
        finish(count.get());
        return false;
    }

    private void finish(int records) {
        last = System.nanoTime();
        lastCpu = system.getProcessCpuTime();
        endedInTime = records;
    }

    private long begin() {
        return first.get() == 0 ? started : first.get();
    }

    EventLog log() {
        return log;
    }

    int ended() {
        return endedInTime;
    }

    double seconds() {
        return (last - begin()) / 1e9;
    }

    double wholeSeconds() {
        return (last - started) / 1e9;
    }

    /** Of the whole process, from the first call of the handler to the end of the last one. */
    double cpuSeconds() {
        return first.get() == 0 ? 0 : (lastCpu - firstCpu) / 1e9;
    }
}
