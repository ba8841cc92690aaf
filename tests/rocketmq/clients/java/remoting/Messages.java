import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as a call describes them, and as the test gets to see them. */
final class Messages {
    private Messages() {
    }

    /** {@code count} messages with the keys PREFIX-0, PREFIX-1 …; a body is given as hex, or is its key's text. */
    static List<Message> described(Call call) {
        List<Message> made = new ArrayList<>();
        for (int number = 0; number < call.number("count", 1); number++) {
            made.add(described(call, call.text("prefix") + "-" + number));
        }
        return made;
    }

    static Message described(Call call, String key) {
        String hex = call.text("body", null);
        byte[] body = hex == null ? ("body of " + key).getBytes(StandardCharsets.UTF_8) : bytes(hex);
        Message message = new Message(call.text("topic"), call.text("tag", ""), key, body);
        // as the client's own setters do, some of which a version may not have yet
        call.beginningWith("property.").forEach((name, value) -> MessageAccessor.putProperty(message, name, value));
        return message;
    }

    static Map<String, Object> sent(Message message, SendResult result) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("key", message.getKeys());
        told.put("body", hex(message.getBody()));
        told.put("status", result.getSendStatus());
        told.put("id", result.getMsgId());
        told.put("offset_id", result.getOffsetMsgId());
        told.put("queue", result.getMessageQueue().getQueueId());
        told.put("offset", result.getQueueOffset());
        told.put("transaction", result.getTransactionId());
        return told;
    }

    static Map<String, Object> received(MessageExt message) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("topic", message.getTopic());
        told.put("key", message.getKeys());
        told.put("tag", message.getTags());
        told.put("body", hex(message.getBody()));
        told.put("id", message.getMsgId());
        told.put("queue", message.getQueueId());
        told.put("offset", message.getQueueOffset());
        told.put("attempts_before", message.getReconsumeTimes());
        told.put("born_ms", message.getBornTimestamp());
        told.put("stored_ms", message.getStoreTimestamp());
        told.put("at_ms", System.currentTimeMillis());
        told.put("properties", new LinkedHashMap<>(message.getProperties()));
        return told;
    }

    static String hex(byte[] data) {
        StringBuilder out = new StringBuilder();
        for (byte each : data) {
            out.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return out.toString();
    }

    private static byte[] bytes(String hex) {
        byte[] data = new byte[hex.length() / 2];
        for (int i = 0; i < data.length; i++) {
            data[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return data;
    }
}
