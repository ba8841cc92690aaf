package shop;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.springframework.stereotype.Component;

/** What each listener got, in the order of its deliveries. */
@Component
public class Inbox {
    private final Map<String, List<Map<String, Object>>> got = new LinkedHashMap<>();

    void put(String listener, MessageExt message) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("topic", message.getTopic());
        told.put("key", message.getKeys());
        told.put("tag", message.getTags());
        told.put("id", message.getMsgId());
        told.put("queue", message.getQueueId());
        told.put("offset", message.getQueueOffset());
        told.put("attempts_before", message.getReconsumeTimes());
        told.put("waited_ms", message.getStoreTimestamp() - message.getBornTimestamp());
        put(listener, told);
    }

    synchronized void put(String listener, Map<String, Object> told) {
        got.computeIfAbsent(listener, any -> new ArrayList<>()).add(told);
        notifyAll();
    }

    /** What a listener has got of the keys that begin so, when it has so many, or when the time is over. */
    public synchronized List<Map<String, Object>> await(String listener, String prefix, int count, long limitMs)
            throws InterruptedException {
        long deadline = System.currentTimeMillis() + limitMs;
        while (true) {
            List<Map<String, Object>> found = got.getOrDefault(listener, List.of()).stream()
                .filter(told -> String.valueOf(told.get("key")).startsWith(prefix)).toList();
            long left = deadline - System.currentTimeMillis();
            if (found.size() >= count || left <= 0) {
                return found;
            }
            wait(left);
        }
    }
}
