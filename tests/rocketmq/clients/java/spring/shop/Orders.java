package shop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Service;

/** Sends orders in every way that the template has; a destination is {@code topic} or {@code topic:tag}. */
@Service
public class Orders {
    private static final int TIMEOUT_MS = 20_000;
    private final RocketMQTemplate template;

    Orders(RocketMQTemplate template) {
        this.template = template;
    }

    private static Message<Order> order(String key) {
        return MessageBuilder.withPayload(Order.of(key)).setHeader(RocketMQHeaders.KEYS, key).build();
    }

    private static Map<String, Object> told(String key, SendResult result) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("key", key);
        told.put("status", result.getSendStatus());
        told.put("id", result.getMsgId());
        told.put("queue", result.getMessageQueue().getQueueId());
        told.put("offset", result.getQueueOffset());
        return told;
    }

    public Map<String, Object> sync(String destination, String key) {
        return told(key, template.syncSend(destination, order(key)));
    }

    public Map<String, Object> batch(String destination, List<String> keys) {
        return told(keys.get(0), template.syncSend(destination, keys.stream().map(Orders::order).toList()));
    }

    /** Orders of one customer go to one queue. */
    public Map<String, Object> orderly(String destination, String key, String customer) {
        return told(key, template.syncSendOrderly(destination, order(key), customer));
    }

    public Map<String, Object> afterLevel(String destination, String key, int level) {
        return told(key, template.syncSend(destination, order(key), TIMEOUT_MS, level));
    }

    public Map<String, Object> after(String destination, String key, long delayMs) {
        return told(key, template.syncSendDelayTimeMills(destination, order(key), delayMs));
    }

    public void oneWay(String destination, String key) {
        template.sendOneWay(destination, order(key));
    }

    /** {@code now} is decided with the sending, {@code later} whenever the server asks. */
    public Map<String, Object> inTransaction(String destination, String key, String now, String later) {
        Payments.Decision decision = new Payments.Decision(
            RocketMQLocalTransactionState.valueOf(now), RocketMQLocalTransactionState.valueOf(later));
        return told(key, template.sendMessageInTransaction(destination, order(key), decision));
    }

    /** All at once; those that are acknowledged. */
    public List<Object> async(String destination, List<String> keys) throws InterruptedException {
        List<Object> told = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch answered = new CountDownLatch(keys.size());
        for (String key : keys) {
            template.asyncSend(destination, order(key), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    told.add(told(key, result));
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    answered.countDown();
                }
            });
        }
        if (!answered.await(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException("not all were answered");
        }
        return told;
    }
}
