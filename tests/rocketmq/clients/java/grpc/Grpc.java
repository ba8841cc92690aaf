import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The gRPC client, with the commands of the remoting clients. */
final class Grpc {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private final Map<String, Producer> producers = new HashMap<>();
    private final Map<String, Consumption> running = new HashMap<>();
    private final Map<String, TransactionResolution> later = new ConcurrentHashMap<>();
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();

    private Grpc() {
    }

    public static void main(String[] arguments) throws Exception {
        Grpc grpc = new Grpc();
        new Driver()
            .with("send", grpc::send)
            .with("transaction", grpc::transaction)
            .with("asked", call -> new LinkedHashMap<>(grpc.asked))
            .with("consume", grpc::consume)
            .with("await", grpc::await)
            .with("stop", grpc::stop)
            .run();
    }

    private static ClientConfiguration configuration(Call call) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(call.text("address"))
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20))
            .build();
    }

    // ---- producing

    private Producer producer(Call call) throws ClientException {
        String topic = call.text("topic");
        Producer found = producers.get(topic);
        if (found == null) {
            found = PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration(call))
                .setTopics(topic)
                .setTransactionChecker(this::check)
                .build();
            producers.put(topic, found);
        }
        return found;
    }

    private TransactionResolution check(MessageView message) {
        String key = message.getKeys().iterator().next();
        asked.merge(key, 1, Integer::sum);
        return later.getOrDefault(key, TransactionResolution.UNKNOWN);
    }

    private static Message described(Call call, String key) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(call.text("topic"))
            .setKeys(key)
            .setBody(("body of " + key).getBytes(StandardCharsets.UTF_8));
        if (call.text("tag", null) != null) {
            builder.setTag(call.text("tag"));
        }
        if (call.text("message_group", null) != null) {
            builder.setMessageGroup(call.text("message_group"));
        }
        if (call.number("delay_ms", 0) > 0) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + call.number("delay_ms", 0));
        }
        call.beginningWith("property.").forEach(builder::addProperty);
        return builder.build();
    }

    private static Object sent(Message message, SendReceipt receipt) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("key", message.getKeys().iterator().next());
        told.put("body", hex(message.getBody()));
        told.put("status", "SEND_OK");
        told.put("id", receipt.getMessageId());
        return told;
    }

    Object send(Call call) throws Exception {
        Producer producer = producer(call);
        List<Object> told = new ArrayList<>();
        for (int number = 0; number < call.number("count", 1); number++) {
            Message message = described(call, call.text("prefix") + "-" + number);
            SendReceipt receipt = "async".equals(call.text("how", "sync"))
                ? producer.sendAsync(message).get() : producer.send(message);
            told.add(sent(message, receipt));
        }
        return Map.of("messages", told);
    }

    /** {@code now} is decided after the sending; {@code later} is told when the server asks. */
    Object transaction(Call call) throws Exception {
        Producer producer = producer(call);
        Message message = described(call, call.text("prefix") + "-0");
        later.put(message.getKeys().iterator().next(), TransactionResolution.valueOf(call.text("later", "UNKNOWN")));
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message, transaction);
        switch (TransactionResolution.valueOf(call.text("now"))) {
            case COMMIT:
                transaction.commit();
                break;
            case ROLLBACK:
                transaction.rollback();
                break;
            default:
        }
        return Map.of("messages", List.of(sent(message, receipt)));
    }

    // ---- consuming

    /** What one consumer got and how it answered. */
    private static final class Consumption {
        final List<Object> got = new ArrayList<>();
        private final Map<String, Integer> deliveries = new HashMap<>();
        private final int failures;
        private final String failing;
        private int done;
        AutoCloseable stop;

        Consumption(Call call) {
            failures = call.number("fail", 0);
            failing = call.text("failing", "");
        }

        /** Whether a delivery succeeds: of keys that end as said, the first so many do not. */
        synchronized boolean takes(MessageView message) {
            String key = String.join(" ", message.getKeys());
            boolean last = !key.endsWith(failing) || deliveries.merge(key, 1, Integer::sum) > failures;
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("topic", message.getTopic());
            told.put("key", key);
            told.put("tag", message.getTag().orElse(null));
            told.put("body", hex(message.getBody()));
            told.put("id", message.getMessageId());
            told.put("message_group", message.getMessageGroup().orElse(null));
            told.put("attempts_before", message.getDeliveryAttempt() - 1);
            told.put("born_ms", message.getBornTimestamp());
            told.put("at_ms", System.currentTimeMillis());
            told.put("properties", new LinkedHashMap<>(message.getProperties()));
            told.put("done", last);
            got.add(told);
            done += last ? 1 : 0;
            notifyAll();
            return last;
        }

        synchronized void await(int count, long limitMs) throws InterruptedException {
            long deadline = System.currentTimeMillis() + limitMs;
            while (done < count && System.currentTimeMillis() < deadline) {
                wait(Math.max(1, deadline - System.currentTimeMillis()));
            }
        }

        synchronized Object told() {
            return Map.of("messages", new ArrayList<>(got));
        }
    }

    Object consume(Call call) throws Exception {
        Consumption consumption = new Consumption(call);
        Map<String, FilterExpression> topics = Map.of(
            call.text("topic"), new FilterExpression(call.text("tags", "*")));
        if ("simple".equals(call.text("kind", "push"))) {
            SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(call))
                .setConsumerGroup(call.text("group"))
                .setAwaitDuration(Duration.ofSeconds(2))
                .setSubscriptionExpressions(topics)
                .build();
            consumption.stop = receiving(call, consumer, consumption);
        } else {
            consumption.stop = PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration(call))
                .setConsumerGroup(call.text("group"))
                .setSubscriptionExpressions(topics)
                .setMessageListener(message ->
                    consumption.takes(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
                .build();
        }
        running.put(call.text("id"), consumption);
        return Map.of();
    }

    /** What succeeds is acknowledged; what fails is to come again after a second of being invisible. */
    private static AutoCloseable receiving(Call call, SimpleConsumer consumer, Consumption consumption) {
        AtomicBoolean over = new AtomicBoolean();
        Duration invisible = Duration.ofMillis(call.number("invisible_ms", 15_000));
        Thread loop = new Thread(() -> {
            while (!over.get()) {
                try {
                    for (MessageView message : consumer.receive(16, invisible)) {
                        if (consumption.takes(message)) {
                            consumer.ack(message);
                        } else {
                            consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                        }
                    }
                } catch (ClientException | RuntimeException error) { // the latter while no server is there
                    error.printStackTrace();
                    LockSupport.parkNanos(100_000_000);
                }
            }
        });
        loop.setDaemon(true);
        loop.start();
        return () -> {
            over.set(true);
            loop.join();
            consumer.close();
        };
    }

    Object await(Call call) throws InterruptedException {
        Consumption consumption = running.get(call.text("id"));
        consumption.await(call.number("count", 1), call.number("limit_ms", 30_000));
        return consumption.told();
    }

    Object stop(Call call) throws Exception {
        Consumption consumption = running.remove(call.text("id"));
        consumption.stop.close();
        return consumption.told();
    }

    private static String hex(ByteBuffer data) {
        StringBuilder out = new StringBuilder();
        for (ByteBuffer rest = data.duplicate(); rest.hasRemaining(); ) {
            byte each = rest.get();
            out.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return out.toString();
    }
}
