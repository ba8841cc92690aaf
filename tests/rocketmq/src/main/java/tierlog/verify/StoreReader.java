package tierlog.verify;

import com.alibaba.fastjson2.JSONArray;
import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

/**
 * Reads everything an open store holds through its public classes.
 *
 * <p>Answer: {@code minPhysicalOffset, maxPhysicalOffset, messages: [...], blanks: [[physical offset, bytes]], queues:
 * [{topic, queueId, minOffset, maxOffset, units: [[physical offset, bytes, tags code]], pulled: [physical offset]}],
 * queries: [[physical offset]]}.
 */
final class StoreReader {
    private static final int MAGIC_V2 = 0xDAA320AB;
    private static final int MAGIC_BLANK = 0xCBD43194;
    private static final int PHYSICAL_OFFSET_AT = 28;
    private static final int MOST_PULLED = 32;
    private final DefaultMessageStore store;

    StoreReader(DefaultMessageStore store) {
        this.store = store;
    }

    Map<String, Object> read(JSONArray queries) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("minPhysicalOffset", store.getMinPhyOffset());
        answer.put("maxPhysicalOffset", store.getMaxPhyOffset());
        List<Object> messages = new ArrayList<>();
        List<Object> blanks = new ArrayList<>();
        walkLog(messages, blanks);
        answer.put("messages", messages);
        answer.put("blanks", blanks);
        answer.put("queues", sortedQueues().stream().map(this::queue).collect(Collectors.toList()));
        List<Object> found = new ArrayList<>();
        for (int i = 0; queries != null && i < queries.size(); i++) {
            found.add(query(queries.getJSONArray(i)));
        }
        answer.put("queries", found);
        return answer;
    }

    private void walkLog(List<Object> messages, List<Object> blanks) {
        long offset = store.getMinPhyOffset();
        while (offset < store.getMaxPhyOffset()) {
            SelectMappedBufferResult segment = store.getCommitLog().getData(offset);
            if (segment == null) {
                throw new IllegalStateException("nothing can be read at " + offset);
            }
            try {
                ByteBuffer at = segment.getByteBuffer().slice();
                int size = at.getInt(0);
                if (at.getInt(4) == MAGIC_BLANK) {
                    blanks.add(List.of(offset, size));
                    offset = store.getCommitLog().rollNextFile(offset);
                    continue;
                }
                DispatchRequest checked =
                    store.getCommitLog().checkMessageAndReturnSize(at.duplicate(), true, false, true);
                if (!checked.isSuccess() || checked.getMsgSize() != size) {
                    throw new IllegalStateException("no whole record at " + offset);
                }
                byte[] record = new byte[size];
                at.get(record);
                messages.add(message(record, checked.getTagsCode()));
                offset += size;
            } finally {
                segment.release();
            }
        }
    }

    private static Map<String, Object> message(byte[] record, long tagsCode) {
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, false);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("physicalOffset", message.getCommitLogOffset());
        fields.put("size", message.getStoreSize());
        fields.put("version", ByteBuffer.wrap(record).getInt(4) == MAGIC_V2 ? 2 : 1);
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("bornMs", message.getBornTimestamp());
        fields.put("bornHost", host(message.getBornHost()));
        fields.put("storeMs", message.getStoreTimestamp());
        fields.put("storeHost", host(message.getStoreHost()));
        fields.put("bodySha256", sha256(message.getBody()));
        fields.put("properties", message.getProperties());
        fields.put("messageId", message.getMsgId());
        fields.put("tagsCode", tagsCode);
        return fields;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String ip = host.getAddress().getHostAddress();
        return (host.getAddress() instanceof Inet6Address ? "[" + ip + "]" : ip) + ":" + host.getPort();
    }

    private static String sha256(byte[] data) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data));
        } catch (NoSuchAlgorithmException missing) {
            throw new IllegalStateException(missing); // every Java has it
        }
    }

    private List<ConsumeQueueInterface> sortedQueues() {
        return store.getConsumeQueueTable().values().stream().flatMap(queues -> queues.values().stream())
            .sorted(Comparator.comparing(ConsumeQueueInterface::getTopic)
                .thenComparing(ConsumeQueueInterface::getQueueId))
            .collect(Collectors.toList());
    }

    private Map<String, Object> queue(ConsumeQueueInterface queue) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", queue.getTopic());
        fields.put("queueId", queue.getQueueId());
        fields.put("minOffset", queue.getMinOffsetInQueue());
        fields.put("maxOffset", queue.getMaxOffsetInQueue());
        List<Object> units = new ArrayList<>();
        for (long at = queue.getMinOffsetInQueue(); at < queue.getMaxOffsetInQueue(); at++) {
            CqUnit unit = queue.get(at);
            units.add(List.of(unit.getPos(), unit.getSize(), unit.getTagsCode()));
        }
        fields.put("units", units);
        fields.put("pulled", pulled(queue));
        return fields;
    }

    /** Physical offsets as a consumer gets them that starts at the smallest offset and takes what it is given. */
    private List<Object> pulled(ConsumeQueueInterface queue) {
        List<Object> offsets = new ArrayList<>();
        long next = queue.getMinOffsetInQueue();
        while (next < queue.getMaxOffsetInQueue()) {
            GetMessageResult result =
                store.getMessage("reader", queue.getTopic(), queue.getQueueId(), next, MOST_PULLED, null);
            try {
                offsets.addAll(physicalOffsets(result.getMessageBufferList()));
                if (result.getNextBeginOffset() <= next) {
                    throw new IllegalStateException("pulling stands still at " + next + ": " + result.getStatus());
                }
                next = result.getNextBeginOffset();
            } finally {
                result.release();
            }
        }
        return offsets;
    }

    private List<Object> query(JSONArray asked) {
        QueryMessageResult result = store.queryMessage(asked.getString(0), asked.getString(1), asked.getIntValue(2),
            asked.getLongValue(3), asked.getLongValue(4), asked.getString(5), null);
        try {
            return physicalOffsets(result.getMessageBufferList());
        } finally {
            result.release();
        }
    }

    private static List<Object> physicalOffsets(List<ByteBuffer> records) {
        return records.stream().map(record -> record.getLong(record.position() + PHYSICAL_OFFSET_AT))
            .collect(Collectors.toList());
    }
}
