package tierlog.verify;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory, which recovers it <b>in place</b>, reads all of it, appends if asked to, copies the directory
 * as a killed process would leave it if asked to, and stops cleanly.
 *
 * <p>Job: {@code root, segmentBytes, queueFileBytes, indexSlots, indexItems, indexSafe, recordChecksum, queries: [[topic,
 * key, most, fromMs, toMs, index type]], append: [{topic, queueId, body (base64), bornMs, properties}],
 * killedCopy}. Answer: that of {@link StoreReader} and, for each appended message, {@code appended: [[physical offset,
 * queue offset, store ms]]}.
 */
final class StoreJob {
    private static final long DISPATCH_LIMIT_MS = 60_000;
    private static final InetSocketAddress BORN_HOST = new InetSocketAddress("192.0.2.7", 40_000);
    private static final InetSocketAddress STORE_HOST = new InetSocketAddress("192.0.2.1", 10_911);

    private StoreJob() {
    }

    static Map<String, Object> run(JSONObject job) throws Exception {
        DefaultMessageStore store = new DefaultMessageStore(config(job), new BrokerStatsManager("cluster", false), null,
            new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store was not loaded: " + job.getString("root"));
        }
        store.start();
        Map<String, Object> answer;
        try {
            awaitDispatch(store);
            answer = new LinkedHashMap<>(new StoreReader(store).read(job.getJSONArray("queries")));
            answer.put("appended", append(store, job.getJSONArray("append")));
            awaitDispatch(store);
            if (job.getString("killedCopy") != null) {
                copy(Path.of(job.getString("root")), Path.of(job.getString("killedCopy")));
            }
        } finally {
            store.shutdown();
        }
        return answer;
    }

    private static MessageStoreConfig config(JSONObject job) {
        String root = job.getString("root");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(job.getIntValue("segmentBytes"));
        config.setMappedFileSizeConsumeQueue(job.getIntValue("queueFileBytes"));
        config.setMaxHashSlotNum(job.getIntValue("indexSlots"));
        config.setMaxIndexNum(job.getIntValue("indexItems"));
        if (job.getBooleanValue("indexSafe")) { // or what is in no complete index file is lost after a crash
            config.setMessageIndexSafe(true);
            config.setCommitLogRecoverMaxNum(Integer.MAX_VALUE);
        }
        config.setEnabledAppendPropCRC(job.getBooleanValue("recordChecksum"));
        config.setForceVerifyPropCRC(job.getBooleanValue("recordChecksum"));
        config.setHaListenPort(0); // any free one: several stores are open at a time
        config.setFileReservedTime(24 * 365 * 50); // hours; nothing is removed for its age, or for a full disk:
        config.setDiskMaxUsedSpaceRatio(95);
        config.setCleanFileForciblyEnable(false);
        return config;
    }

    private static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_LIMIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException(store.dispatchBehindBytes() + " bytes are still not dispatched");
            }
            Thread.sleep(5);
        }
    }

    private static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> found = Files.walk(from)) {
            for (Path path : found.collect(Collectors.toList())) {
                Files.copy(path, to.resolve(from.relativize(path).toString()));
            }
        }
    }

    private static List<Object> append(DefaultMessageStore store, JSONArray messages) {
        List<Object> places = new ArrayList<>();
        for (int i = 0; messages != null && i < messages.size(); i++) {
            PutMessageResult result = store.putMessage(message(messages.getJSONObject(i)));
            if (!result.isOk()) {
                throw new IllegalStateException("message " + i + ": " + result.getPutMessageStatus());
            }
            AppendMessageResult place = result.getAppendMessageResult();
            places.add(List.of(place.getWroteOffset(), place.getLogicsOffset(), place.getStoreTimestamp()));
        }
        return places;
    }

    private static MessageExtBrokerInner message(JSONObject from) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(from.getString("topic"));
        message.setQueueId(from.getIntValue("queueId"));
        message.setBody(Base64.getDecoder().decode(from.getString("body")));
        message.setBornTimestamp(from.getLongValue("bornMs"));
        message.setBornHost(BORN_HOST);
        message.setStoreHost(STORE_HOST);
        Map<String, String> properties = new HashMap<>();
        from.getJSONObject("properties").forEach((name, value) -> properties.put(name, String.valueOf(value)));
        MessageAccessor.setProperties(message, properties);
        message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        return message;
    }
}
