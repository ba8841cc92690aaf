package tierlog.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.tieredstore.MessageStoreConfig;
import org.apache.rocketmq.tieredstore.MessageStoreExecutor;
import org.apache.rocketmq.tieredstore.common.AppendResult;
import org.apache.rocketmq.tieredstore.common.FileSegmentType;
import org.apache.rocketmq.tieredstore.index.IndexStoreFile;
import org.apache.rocketmq.tieredstore.provider.PosixFileSegment;

/** The index file of the tiered store, one at a time: made by {@code index_put} and kept for the commands after it. */
final class IndexRuns {
    private static final int ITEMS_PER_SECOND = 100_000;
    private static final int MOST_RESULTS = 32;

    private final Path folder;
    private MessageStoreConfig config;
    private String[] keys;
    private long begunMs;
    private IndexStoreFile file;
    private byte[] compacted;
    private IndexStoreFile uploaded;

    IndexRuns(Path folder) {
        this.folder = folder.resolve("index");
    }

    /** Into a file with {@code slots} and room for {@code items}, {@code n} keys, one by one. */
    Map<String, Object> put(JSONObject command) throws Exception {
        forget();
        keys = Corpus.keys(command);
        config = config(command.getIntValue("slots"), command.getIntValue("items"));
        begunMs = System.currentTimeMillis();
        file = new IndexStoreFile(config, begunMs);
        long begun = System.nanoTime();
        for (int i = 0; i < keys.length; i++) {
            AppendResult result = file.putKey(Corpus.TOPIC, 1, i & 7, Collections.singleton(keys[i]), i * 256L, 256,
                begunMs + 1000L * i / ITEMS_PER_SECOND);
            if (result != AppendResult.SUCCESS) {
                throw new IllegalStateException("key " + i + ": " + result);
            }
        }
        Map<String, Object> answer = Corpus.rate(keys.length, System.nanoTime() - begun);
        answer.put("last_key", keys[keys.length - 1]);
        return answer;
    }

    /** What {@code index_put} made, into a new file in the order of the slots; it may be done again. */
    Map<String, Object> compact() throws Exception {
        try (Stream<Path> found = Files.find(folder, 3, (path, is) -> path.getFileName().toString().equals("compacting"))) {
            for (Path before : found.collect(Collectors.toList())) {
                Corpus.remove(before); // else its pages are written over, which a file is only made once
            }
        }
        long begun = System.nanoTime();
        ByteBuffer made = file.doCompaction();
        long nanos = System.nanoTime() - begun;
        compacted = new byte[made.remaining()];
        made.duplicate().get(compacted);
        Map<String, Object> answer = Corpus.rate(keys.length, nanos);
        answer.put("bytes", compacted.length);
        return answer;
    }

    /** Look-ups in the file before its compaction. */
    Map<String, Object> queryBefore(JSONObject command) throws Exception {
        return query(file, command);
    }

    /** Look-ups in the compacted file as the tiered store reads it: two asynchronous reads of a local segment each. */
    Map<String, Object> queryAfter(JSONObject command) throws Exception {
        if (uploaded == null) {
            uploaded = upload();
        }
        return query(uploaded, command);
    }

    private Map<String, Object> query(IndexStoreFile from, JSONObject command) throws Exception {
        int[] drawn = Corpus.drawn(command.getIntValue("queries"), keys.length);
        long hits = 0;
        long begun = System.nanoTime();
        for (int number : drawn) {
            hits += from.queryAsync(Corpus.TOPIC, keys[number], MOST_RESULTS, 0, Long.MAX_VALUE).get().size();
        }
        Map<String, Object> answer = Corpus.rate(drawn.length, System.nanoTime() - begun);
        if (hits < drawn.length) {
            throw new IllegalStateException("found " + hits + " of " + drawn.length);
        }
        answer.put("hits", hits);
        return answer;
    }

    private IndexStoreFile upload() throws Exception {
        ByteBuffer content = ByteBuffer.wrap(compacted);
        PosixFileSegment segment = new PosixFileSegment(config, FileSegmentType.INDEX, "peer/rmq_sys_INDEX/" + begunMs, 0L,
            new MessageStoreExecutor());
        segment.createFile();
        segment.initPosition(0L);
        segment.append(content.duplicate(), begunMs);
        if (!segment.commitAsync().get()) {
            throw new IllegalStateException("the compacted file was not written");
        }
        segment.setMinTimestamp(begunMs);
        segment.setMaxTimestamp(content.getLong(12)); // of its header
        return new IndexStoreFile(config, segment);
    }

    private MessageStoreConfig config(int slots, int items) {
        MessageStoreConfig made = new MessageStoreConfig();
        made.setBrokerName("peer");
        made.setBrokerClusterName("peer");
        made.setStorePathRootDir(folder.toString());
        made.setTieredStoreFilePath(folder.resolve("cold").toString());
        made.setTieredBackendServiceProvider(PosixFileSegment.class.getName());
        made.setTieredStoreIndexFileMaxHashSlotNum(slots);
        made.setTieredStoreIndexFileMaxIndexNum(items);
        return made;
    }

    private void forget() throws Exception {
        for (IndexStoreFile one : new IndexStoreFile[] {file, uploaded}) {
            if (one != null) {
                one.shutdown();
                one.destroy();
            }
        }
        file = null;
        compacted = null;
        uploaded = null;
        Corpus.remove(folder);
    }
}
