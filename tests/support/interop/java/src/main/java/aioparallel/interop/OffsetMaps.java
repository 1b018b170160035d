package aioparallel.interop;

import io.confluent.parallelconsumer.offsets.NoEncodingPossibleException;
import io.confluent.parallelconsumer.offsets.OffsetEncoding;
import io.confluent.parallelconsumer.offsets.OffsetMapCodecManager;
import io.confluent.parallelconsumer.offsets.OffsetSimultaneousEncoder;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.stream.Collectors;

/**
 * The Java library's own offset maps, written and read; one line of input, one line of output.
 *
 * <p>"encode BASE HIGHEST INCOMPLETES" gives "encoded NAME=TEXT ... picked=TEXT": every format that holds the map, and
 * the one the library would commit. "decode BASE TEXT" gives "decoded HIGHEST INCOMPLETES" or "refused WHY".
 * Incompletes are offsets with commas between, or "-" for none.
 */
public final class OffsetMaps {
    private OffsetMaps() {}

    public static void main(String[] arguments) throws IOException {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (var line = input.readLine(); line != null; line = input.readLine()) {
            var words = line.split(" ");
            var base = Long.parseLong(words[1]);
            System.out.println(
                    words[0].equals("encode")
                            ? encode(base, Long.parseLong(words[2]), readOffsets(words[3]))
                            : decode(base, words[2]));
        }
    }

    private static String encode(long base, long highest, SortedSet<Long> incompletes) {
        OffsetSimultaneousEncoder.compressionForced = true;
        var formats = new OffsetSimultaneousEncoder(base, highest, incompletes).invoke().getEncodingMap();
        OffsetSimultaneousEncoder.compressionForced = false;
        var texts = formats.entrySet().stream()
                .map(entry -> entry.getKey().name() + "=" + text(entry.getKey(), entry.getValue()))
                .sorted()
                .collect(Collectors.joining(" "));
        try {
            var picked = new OffsetSimultaneousEncoder(base, highest, incompletes).invoke().packSmallest();
            return "encoded " + texts + " picked=" + Base64.getEncoder().encodeToString(picked);
        } catch (NoEncodingPossibleException none) {
            return "encoded " + texts;
        }
    }

    private static String text(OffsetEncoding format, byte[] body) {
        var payload = ByteBuffer.allocate(1 + body.length).put(format.magicByte).put(body).array();
        return Base64.getEncoder().encodeToString(payload);
    }

    private static String decode(long base, String text) {
        try {
            var read = OffsetMapCodecManager.deserialiseIncompleteOffsetMapFromBase64(base, text);
            var highest = read.getHighestSeenOffset().map(String::valueOf).orElse("none");
            return "decoded " + highest + " " + writeOffsets(read.getIncompleteOffsets());
        } catch (Exception error) {
            return "refused " + error.toString().replace('\n', ' ');
        }
    }

    private static SortedSet<Long> readOffsets(String text) {
        var offsets = new TreeSet<Long>();
        if (!text.equals("-")) {
            for (var offset : text.split(",")) {
                offsets.add(Long.parseLong(offset));
            }
        }
        return offsets;
    }

    private static String writeOffsets(SortedSet<Long> offsets) {
        return offsets.isEmpty() ? "-" : offsets.stream().map(String::valueOf).collect(Collectors.joining(","));
    }
}
