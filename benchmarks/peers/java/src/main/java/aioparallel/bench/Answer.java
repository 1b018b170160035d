package aioparallel.bench;

/**
 * The line that answers an {@link Order}; what is null is left out.
 *
 * @param seconds from the first call of the handler to the end of the last one
 * @param wholeSeconds the same from the start of the consumer
 * @param cpuSeconds user and system time of the whole process from the first call to the end of the last one
 * @param peakMemory bytes, the highest resident size of this process so far
 * @param stopped whether the work's limit was reached, with {@code ended} records done
 * @param error what went wrong; then there is nothing else
 */
record Answer(
        int round,
        Double seconds,
        Double wholeSeconds,
        Integer ended,
        Double cpuSeconds,
        Long peakMemory,
        Boolean stopped,
        String error) {

    static Answer ofError(int round, Throwable error) {
        return new Answer(round, null, null, null, null, null, null, error.toString());
    }
}
