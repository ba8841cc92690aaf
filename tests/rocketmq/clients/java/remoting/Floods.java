import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** Producers that send as fast as a server takes it, and write down each message that it has acknowledged. */
final class Floods {
    private static final int TIMEOUT_MS = 10_000;
    private final Producers producers;
    private final Map<String, Flood> running = new ConcurrentHashMap<>();

    Floods(Producers producers) {
        this.producers = producers;
    }

    /**
     * Begins: {@code count} messages (0: until it is stopped) with the keys PREFIX-0, PREFIX-1 …, in turn to the
     * {@code topics}, bodies of up to {@code bytes}, {@code window} without an answer at a time. The file gets a line
     * for each acknowledged one: TOPIC KEY QUEUE OFFSET ID PLACE STATUS.
     */
    Object start(Call call) throws Exception {
        Flood flood = new Flood(call, producers.of(call));
        running.put(call.text("id"), flood);
        flood.thread.start();
        return Map.of();
    }

    /** Ends it when it has sent all, or with {@code now=true} at once; all answers have come then. */
    Object end(Call call) throws Exception {
        Flood flood = running.remove(call.text("id"));
        flood.over = call.text("now", "false").equals("true");
        flood.thread.join();
        return flood.told();
    }

    /** One that runs. */
    private static final class Flood implements Runnable {
        final Thread thread = new Thread(this);
        volatile boolean over;
        private final DefaultMQProducer producer;
        private final String[] topics;
        private final String prefix;
        private final int count;
        private final int bytes;
        private final int window;
        private final Semaphore room;
        private final PrintWriter lines;
        private final Random random;
        private final AtomicInteger failed = new AtomicInteger();
        private final AtomicInteger acknowledged = new AtomicInteger();
        private final AtomicLong sentBytes = new AtomicLong();
        private final Map<String, Integer> errors = new ConcurrentHashMap<>();
        private double seconds;

        Flood(Call call, DefaultMQProducer producer) throws IOException {
            this.producer = producer;
            topics = call.text("topics").split(",");
            prefix = call.text("prefix");
            count = call.number("count", 0);
            bytes = call.number("bytes", 1000);
            window = call.number("window", 200);
            room = new Semaphore(window);
            random = new Random(call.number("seed", 1));
            lines = new PrintWriter(Files.newBufferedWriter(Path.of(call.text("file")), StandardCharsets.UTF_8));
        }

        @Override
        public void run() {
            long begun = System.nanoTime();
            try (lines) {
                for (int number = 0; !over && (count == 0 || number < count); number++) {
                    room.acquire();
                    send(number);
                }
                room.acquire(window);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            seconds = (System.nanoTime() - begun) / 1e9;
        }

        private void send(int number) throws InterruptedException {
            byte[] body = new byte[random.nextInt(bytes) + 1];
            random.nextBytes(body);
            Message message = new Message(topics[number % topics.length], "tag-" + number % 3, prefix + "-" + number, body);
            try {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        took(message, result);
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        refused(error);
                        room.release();
                    }
                }, TIMEOUT_MS);
            } catch (InterruptedException error) {
                throw error;
            } catch (Exception error) {
                refused(error);
                room.release();
                Thread.sleep(50); // nobody is there: not in a hot loop
            }
        }

        private void took(Message message, SendResult result) {
            sentBytes.addAndGet(message.getBody().length);
            synchronized (lines) {
                lines.println(String.join(" ", message.getTopic(), message.getKeys(),
                    String.valueOf(result.getMessageQueue().getQueueId()), String.valueOf(result.getQueueOffset()),
                    result.getMsgId(), result.getOffsetMsgId(), result.getSendStatus().name()));
            }
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                acknowledged.incrementAndGet();
            }
        }

        private void refused(Throwable error) {
            failed.incrementAndGet();
            errors.merge(error.getClass().getSimpleName(), 1, Integer::sum);
        }

        Map<String, Object> told() {
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("acknowledged", acknowledged.get());
            told.put("failed", failed.get());
            told.put("bytes", sentBytes.get());
            told.put("seconds", seconds);
            told.put("errors", new LinkedHashMap<>(errors));
            return told;
        }
    }
}
