import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers of every kind, which run until they are stopped and note each delivery. */
final class Consumers {
    private final Map<String, Consumption> running = new HashMap<>();

    /** What one consumer got and how it answered. */
    static final class Consumption {
        final List<Object> got = new ArrayList<>();
        private final Map<String, Integer> deliveries = new HashMap<>();
        private final int failures;
        private final String failing;
        private int done;
        Runnable stop;

        Consumption(Call call) {
            failures = call.number("fail", 0);
            failing = call.text("failing", "");
        }

        /** Whether a delivery succeeds: of keys that end as said, the first so many do not. */
        synchronized boolean takes(MessageExt message) {
            boolean last = !message.getKeys().endsWith(failing)
                || deliveries.merge(message.getKeys(), 1, Integer::sum) > failures;
            Map<String, Object> told = Messages.received(message);
            told.put("done", last);
            got.add(told);
            done += last ? 1 : 0;
            notifyAll();
            return last;
        }

        synchronized void await(String counted, int count, long limitMs) throws InterruptedException {
            long deadline = System.currentTimeMillis() + limitMs;
            while (("done".equals(counted) ? done : got.size()) < count && System.currentTimeMillis() < deadline) {
                wait(Math.max(1, deadline - System.currentTimeMillis()));
            }
        }
    }

    Object start(Call call) throws Exception {
        Consumption consumption = new Consumption(call);
        switch (call.text("kind", "concurrent")) {
            case "lite":
                consumption.stop = lite(call, consumption);
                break;
            default:
                DefaultMQPushConsumer consumer = push(call, consumption);
                consumer.start();
                consumption.stop = consumer::shutdown;
        }
        running.put(call.text("id"), consumption);
        return Map.of();
    }

    /** Kept for a consumer that another class configures further. */
    void started(String id, DefaultMQPushConsumer consumer, Consumption consumption) {
        consumption.stop = consumer::shutdown;
        running.put(id, consumption);
    }

    static DefaultMQPushConsumer push(Call call, Consumption consumption) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(call.text("group"));
        consumer.setNamesrvAddr(call.text("address"));
        consumer.setInstanceName(call.text("address") + "-" + call.text("id"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            call.text("from", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET.name())));
        consumer.setMaxReconsumeTimes(call.number("max_attempts", -1));
        consumer.setConsumeThreadMin(call.number("threads", 4));
        consumer.setConsumeThreadMax(call.number("threads", 4));
        consumer.setPersistConsumerOffsetInterval(1_000);
        // else what a listener is about to acknowledge is not
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.subscribe(call.text("topic"), call.text("tags", "*"));
        switch (call.text("kind", "concurrent")) {
            case "orderly":
                consumer.setSuspendCurrentQueueTimeMillis(50);
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    messages.stream().allMatch(consumption::takes)
                        ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
                break;
            case "broadcast":
                // its class is in another package in every version
                for (var model : consumer.getMessageModel().getDeclaringClass().getEnumConstants()) {
                    if (model.name().equals("BROADCASTING")) {
                        consumer.setMessageModel(model);
                    }
                }
                concurrently(call, consumer, consumption);
                break;
            default:
                concurrently(call, consumer, consumption);
        }
        return consumer;
    }

    /** {@code level} says after how long a failure is delivered again; 0 leaves it to the server. */
    private static void concurrently(Call call, DefaultMQPushConsumer consumer, Consumption consumption) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(call.number("level", 0));
            return messages.stream().allMatch(consumption::takes)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
    }

    @SuppressWarnings("deprecation") // of the commit, whose successor 4.9 does not have
    private static Runnable lite(Call call, Consumption consumption) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(call.text("group"));
        consumer.setNamesrvAddr(call.text("address"));
        consumer.setInstanceName(call.text("address") + "-" + call.text("id"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(call.text("topic"), call.text("tags", "*"));
        consumer.start();
        AtomicBoolean over = new AtomicBoolean();
        Thread polls = new Thread(() -> {
            while (!over.get()) {
                List<MessageExt> messages = consumer.poll(200);
                messages.forEach(consumption::takes);
                if (!messages.isEmpty()) {
                    consumer.commitSync();
                }
            }
        });
        polls.setDaemon(true);
        polls.start();
        return () -> {
            over.set(true);
            try {
                polls.join();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            consumer.shutdown();
        };
    }

    /** What it has got when it has so many, or when the time is over. */
    Object await(Call call) throws InterruptedException {
        Consumption consumption = running.get(call.text("id"));
        consumption.await(call.text("counted", "done"), call.number("count", 1), call.number("limit_ms", 30_000));
        return told(consumption);
    }

    Object stop(Call call) {
        Consumption consumption = running.remove(call.text("id"));
        consumption.stop.run();
        return told(consumption);
    }

    private static Object told(Consumption consumption) {
        synchronized (consumption) {
            Map<String, Object> told = new LinkedHashMap<>();
            told.put("messages", new ArrayList<>(consumption.got));
            return told;
        }
    }
}
