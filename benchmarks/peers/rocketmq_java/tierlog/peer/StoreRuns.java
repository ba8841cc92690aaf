package tierlog.peer;

import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** DefaultMessageStore with default file sizes, four queues, one key, tag and unique key in every message. */
final class StoreRuns {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10_911);
    private static final int QUEUES = 4;
    private static final int LOG_FILE_BYTES = 1 << 30;
    private static final int MOST_RESULTS = 32;

    private final Path folder;
    private DefaultMessageStore filled;
    private String[] filledKeys;

    StoreRuns(Path folder) {
        this.folder = folder.resolve("store");
    }

    /**
     * {@code n} messages of {@code body} bytes from {@code threads}, in batches of {@code batch} (1: putMessage), waiting
     * for the disk if {@code sync}, within a first file of zeros that is on the disk if {@code prewritten}. Making the
     * messages, with their properties' text, counts. {@code dispatched_rate} is until queues and index have caught up, {@code store_rate}
     * what the threads' time within putMessage or putMessages alone would make.
     */
    Map<String, Object> append(JSONObject command) throws Exception {
        Corpus.remove(folder);
        String[] keys = Corpus.keys(command);
        byte[][] bodies = Corpus.bodies(command.getIntValue("body"));
        if (command.getBooleanValue("prewritten")) {
            prewrite();
        }
        DefaultMessageStore store = open(command);
        put(store, new String[] {"first"}, bodies, 1, 1); // makes the files
        drain(store);
        int threads = command.getIntValue("threads");
        long begun = System.nanoTime();
        long within = put(store, keys, bodies, threads, command.getIntValue("batch"));
        long nanos = System.nanoTime() - begun;
        drain(store);
        long dispatched = System.nanoTime() - begun;
        Map<String, Object> answer = Corpus.rate(keys.length, nanos);
        answer.put("dispatched_seconds", dispatched / 1e9);
        answer.put("dispatched_rate", keys.length * 1e9 / dispatched);
        answer.put("store_rate", keys.length * 1e9 * threads / within);
        answer.put("bytes", store.getMaxPhyOffset());
        store.shutdown();
        store.destroy();
        Corpus.remove(folder);
        return answer;
    }

    /** A store for {@code consume} and {@code query_message}, which stays open until the next one. */
    Map<String, Object> fill(JSONObject command) throws Exception {
        if (filled != null) {
            filled.shutdown();
            filled.destroy();
            filled = null;
        }
        Corpus.remove(folder);
        filledKeys = Corpus.keys(command);
        filled = open(command);
        long begun = System.nanoTime();
        put(filled, filledKeys, Corpus.bodies(command.getIntValue("body")), 1, 1);
        drain(filled);
        return Corpus.rate(filledKeys.length, System.nanoTime() - begun);
    }

    /** Pulls all queues from their beginning, at most {@code n} messages; {@code decode} parses them, with their bodies. */
    Map<String, Object> consume(JSONObject command) throws Exception {
        boolean decode = command.getBooleanValue("decode");
        long most = command.getLongValue("n");
        long got = 0;
        long bytes = 0;
        long begun = System.nanoTime();
        for (int queue = 0; queue < QUEUES && got < most; queue++) {
            long end = filled.getMaxOffsetInQueue(Corpus.TOPIC, queue);
            for (long at = 0; at < end && got < most; ) {
                GetMessageResult result = filled.getMessage("group", Corpus.TOPIC, queue, at, MOST_RESULTS, null);
                got += result.getMessageCount();
                at = result.getNextBeginOffset();
                if (decode) {
                    for (ByteBuffer record : result.getMessageBufferList()) {
                        bytes += MessageDecoder.decode(record, true, false).getBody().length;
                    }
                }
                result.release();
            }
        }
        Map<String, Object> answer = Corpus.rate(got, System.nanoTime() - begun);
        answer.put("body_bytes", bytes);
        return answer;
    }

    /** Looks {@code queries} keys up that are there; {@code decode} parses what is found, otherwise it is a view. */
    Map<String, Object> queryMessage(JSONObject command) {
        boolean decode = command.getBooleanValue("decode");
        int[] drawn = Corpus.drawn(command.getIntValue("queries"), filledKeys.length);
        long hits = 0;
        long bytes = 0;
        long begun = System.nanoTime();
        for (int number : drawn) {
            QueryMessageResult result =
                filled.queryMessage(Corpus.TOPIC, filledKeys[number], MOST_RESULTS, 0, Long.MAX_VALUE);
            for (SelectMappedBufferResult record : result.getMessageMapedList()) {
                hits++;
                if (decode) {
                    bytes += MessageDecoder.decode(record.getByteBuffer(), true, false).getBody().length;
                }
            }
            result.release();
        }
        Map<String, Object> answer = Corpus.rate(drawn.length, System.nanoTime() - begun);
        if (hits < drawn.length) {
            throw new IllegalStateException("found " + hits + " of " + drawn.length);
        }
        answer.put("hits", hits);
        answer.put("body_bytes", bytes);
        return answer;
    }

    /** Fills a store and leaves it open: whoever asked kills the process then. */
    Map<String, Object> waitToBeKilled(JSONObject command) throws Exception {
        Map<String, Object> answer = fill(command);
        Thread.sleep(command.getIntValue("linger_ms")); // lets the periodic flushes move the checkpoint
        answer.put("bytes", filled.getMaxPhyOffset());
        return answer;
    }

    /** Opens what is in the folder until queues and index are there, and leaves it open. */
    Map<String, Object> recover() throws Exception {
        if (!Files.exists(folder.resolve("abort"))) {
            throw new IllegalStateException("not the store of a killed process: " + folder);
        }
        long begun = System.nanoTime();
        filled = open(new JSONObject());
        drain(filled);
        long nanos = System.nanoTime() - begun;
        long messages = 0;
        for (int queue = 0; queue < QUEUES; queue++) {
            messages += filled.getMaxOffsetInQueue(Corpus.TOPIC, queue);
        }
        Map<String, Object> answer = Corpus.rate(messages, nanos);
        answer.put("bytes", filled.getMaxPhyOffset());
        return answer;
    }

    private DefaultMessageStore open(JSONObject command) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder.toString());
        config.setStorePathCommitLog(folder.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(LOG_FILE_BYTES); // as by default
        boolean sync = command.getBooleanValue("sync");
        config.setFlushDiskType(sync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        config.setHaListenPort(0); // any free one
        config.setDiskMaxUsedSpaceRatio(95); // a rather full disk is no reason to refuse or to remove
        config.setCleanFileForciblyEnable(false);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("peer");
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("peer", false), null, broker,
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store was not loaded: " + folder);
        }
        store.start();
        return store;
    }

    /** The store takes a first file of zeros over as one in which nothing was written yet. */
    private void prewrite() throws IOException {
        Path file = Files.createDirectories(folder.resolve("commitlog")).resolve("0".repeat(20));
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            ByteBuffer zeros = ByteBuffer.allocateDirect(1 << 20);
            for (int written = 0; written < LOG_FILE_BYTES; written += zeros.capacity()) {
                channel.write(zeros.clear());
            }
            channel.force(true);
        }
    }

    private static void drain(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** Nanoseconds that the threads were within the store's calls, added up. */
    private static long put(DefaultMessageStore store, String[] keys, byte[][] bodies, int threads, int batch)
        throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicLong within = new AtomicLong();
        Callable<Void> producer = () -> {
            long nanos = 0;
            for (int i = next.getAndAdd(batch); i < keys.length; i = next.getAndAdd(batch)) {
                nanos += batch == 1 ? putOne(store, i, keys, bodies) : putBatch(store, i, batch, keys, bodies);
            }
            within.addAndGet(nanos);
            return null;
        };
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Callable<Void>> producers = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                producers.add(producer);
            }
            for (Future<Void> each : pool.invokeAll(producers)) {
                each.get();
            }
        } finally {
            pool.shutdown();
        }
        return within.get();
    }

    private static long putOne(DefaultMessageStore store, int number, String[] keys, byte[][] bodies) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        address(message, number);
        message.setBody(bodies[number % bodies.length]);
        message.setTags("TagA");
        MessageAccessor.putProperty(message, "KEYS", keys[number]);
        MessageClientIDSetter.setUniqID(message);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        long begun = System.nanoTime();
        check(store.putMessage(message), number);
        return System.nanoTime() - begun;
    }

    /** As the client's batch and the broker make one: the encoded messages are the body, all go to the same queue. */
    private static long putBatch(DefaultMessageStore store, int first, int size, String[] keys, byte[][] bodies) {
        List<Message> messages = new ArrayList<>(size);
        for (int i = first; i < Math.min(first + size, keys.length); i++) {
            Message message = new Message(Corpus.TOPIC, "TagA", keys[i], bodies[i % bodies.length]);
            MessageClientIDSetter.setUniqID(message);
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        address(batch, first / size);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        long begun = System.nanoTime();
        check(store.putMessages(batch), first);
        return System.nanoTime() - begun;
    }

    private static void address(MessageExtBrokerInner message, int number) {
        message.setTopic(Corpus.TOPIC);
        message.setQueueId(number % QUEUES);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
    }

    private static void check(PutMessageResult result, int number) {
        if (!result.isOk()) {
            throw new IllegalStateException("message " + number + ": " + result.getPutMessageStatus());
        }
    }
}
