package tierlog.verify;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.MessageStoreExecutor;
import org.apache.rocketmq.tieredstore.common.FileSegmentType;
import org.apache.rocketmq.tieredstore.index.IndexItem;
import org.apache.rocketmq.tieredstore.index.IndexStoreFile;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;

/**
 * Opens a compacted index file as the tiered store does once it was uploaded, on top of the provider for directories.
 *
 * <p>Job: {@code file, work (an empty folder), slots, items, queries: [[topic, key, most, fromMs, toMs]]}.
 * Answer: {@code queries: [[[hash, topic id, queue id, offset, size, seconds]]]}, newest first.
 */
final class CompactedIndexJob {
    private static final int BEGIN_MS_AT = 4;
    private static final int END_MS_AT = 12;

    private CompactedIndexJob() {
    }

    static Map<String, Object> run(JSONObject job) throws Exception {
        IndexStoreFile file = open(config(job), ByteBuffer.wrap(Files.readAllBytes(Path.of(job.getString("file")))));
        List<Object> results = new ArrayList<>();
        JSONArray queries = job.getJSONArray("queries");
        for (int i = 0; i < queries.size(); i++) {
            results.add(query(file, queries.getJSONArray(i)));
        }
        return Map.of("queries", results);
    }

    private static MessageStoreConfig config(JSONObject job) {
        String work = job.getString("work");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setBrokerName("broker");
        config.setStorePathRootDir(work);
        config.setTieredStoreFilePath(work + "/cold");
        config.setTieredBackendServiceProvider(PosixFileSegment.class.getName());
        config.setTieredStoreIndexFileMaxHashSlotNum(job.getIntValue("slots"));
        config.setTieredStoreIndexFileMaxIndexNum(job.getIntValue("items"));
        return config;
    }

    private static IndexStoreFile open(MessageStoreConfig config, ByteBuffer content) throws Exception {
        long beginMs = content.getLong(BEGIN_MS_AT);
        PosixFileSegment segment = new PosixFileSegment(config, FileSegmentType.INDEX,
            "broker/rmq_sys_INDEX/" + beginMs, 0, new MessageStoreExecutor());
        segment.createFile();
        segment.initPosition(0);
        segment.append(content, beginMs);
        if (!segment.commitAsync().get()) {
            throw new IllegalStateException("the provider did not take the file");
        }
        segment.setMinTimestamp(beginMs);
        segment.setMaxTimestamp(content.getLong(END_MS_AT));
        return new IndexStoreFile(config, segment);
    }

    private static List<Object> query(IndexStoreFile file, JSONArray asked) throws Exception {
        List<IndexItem> found = file.queryAsync(asked.getString(0), asked.getString(1), asked.getIntValue(2),
            asked.getLongValue(3), asked.getLongValue(4)).get();
        return found.stream().map(item -> List.of(item.getHashCode(), item.getTopicId(), item.getQueueId(),
            item.getOffset(), item.getSize(), item.getTimeDiff())).collect(Collectors.toList());
    }
}
