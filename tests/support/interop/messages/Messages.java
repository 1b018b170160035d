import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;

/**
 * Kafka's own classes of messages, written and read; one line of input, one line of output.
 *
 * <p>"encode NAME VERSION JSON" gives "encoded BYTES", "tagged NAME VERSION JSON" the same with two tagged fields that
 * no version knows in each structure, and "decode NAME VERSION BYTES" gives "decoded BYTES JSON", or "refused WHY". NAME
 * is that of the message, such as ShareFetchRequest; BYTES are in hexadecimal digits, or "-" for what cannot be written
 * again; JSON is as Kafka's converters have it.
 */
public final class Messages {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String PACKAGE = "org.apache.kafka.common.message.";

    private Messages() {}

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (var line = input.readLine(); line != null; line = input.readLine()) {
            output.println(answer(line.split(" ", 4)));
        }
        output.flush();
    }

    private static String answer(String[] words) throws Exception {
        var name = words[1];
        var version = Short.parseShort(words[2]);
        if (words[0].equals("decode")) {
            try {
                return decode(name, version, HexFormat.of().parseHex(words[3]));
            } catch (RuntimeException error) {
                return "refused " + error.toString().replace('\n', ' ');
            }
        }
        var message = fromJson(name, version, JSON.readTree(words[3]));
        if (words[0].equals("tagged")) {
            tag(message);
        }
        return "encoded " + HexFormat.of().formatHex(bytes(message, version));
    }

    private static String decode(String name, short version, byte[] bytes) throws Exception {
        var message = (ApiMessage) Class.forName(PACKAGE + name + "Data").getConstructor().newInstance();
        var buffer = ByteBuffer.wrap(bytes);
        message.read(new ByteBufferAccessor(buffer), version);
        if (buffer.hasRemaining()) {
            return "refused " + buffer.remaining() + " bytes are left";
        }
        return "decoded " + written(message, version) + " " + toJson(name, version, message);
    }

    private static String written(ApiMessage message, short version) {
        try {
            return HexFormat.of().formatHex(bytes(message, version));
        } catch (RuntimeException error) {
            return "-"; // unknown tagged fields that are not in order
        }
    }

    private static byte[] bytes(ApiMessage message, short version) {
        var cache = new ObjectSerializationCache();
        var buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return buffer.array();
    }

    private static ApiMessage fromJson(String name, short version, JsonNode json) throws Exception {
        var read = converter(name).getMethod("read", JsonNode.class, short.class);
        return (ApiMessage) invoke(() -> read.invoke(null, json, version));
    }

    private static JsonNode toJson(String name, short version, ApiMessage message) throws Exception {
        var write = converter(name).getMethod("write", message.getClass(), short.class);
        return (JsonNode) invoke(() -> write.invoke(null, message, version));
    }

    private static Class<?> converter(String name) throws ClassNotFoundException {
        return Class.forName(PACKAGE + name + "DataJsonConverter");
    }

    private interface Call {
        Object run() throws ReflectiveOperationException;
    }

    private static Object invoke(Call call) throws Exception {
        try {
            return call.run();
        } catch (InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    private static void tag(Message message) throws IllegalAccessException {
        message.unknownTaggedFields().add(new RawTaggedField(1000, new byte[] {1, 2, 3}));
        message.unknownTaggedFields().add(new RawTaggedField(70000, new byte[0]));
        for (Field field : message.getClass().getDeclaredFields()) {
            field.setAccessible(true);
            if (field.get(message) instanceof Message inner) {
                tag(inner);
            } else if (field.get(message) instanceof Collection<?> some) {
                for (Object one : some) {
                    if (one instanceof Message inner) {
                        tag(inner);
                    }
                }
            }
        }
    }
}
