package shop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.messaging.Message;

/** Decides of transactions as their sender said: at once, and again when the server asks. */
@RocketMQTransactionListener
@SuppressWarnings("rawtypes") // of the interface
class Payments implements RocketMQLocalTransactionListener {
    /** What a sender wants to be decided. */
    record Decision(RocketMQLocalTransactionState now, RocketMQLocalTransactionState later) {
    }

    private final Map<String, RocketMQLocalTransactionState> later = new ConcurrentHashMap<>();

    @Override
    public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
        Decision decision = (Decision) argument;
        later.put(keyOf(message), decision.later());
        return decision.now();
    }

    @Override
    public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
        return later.getOrDefault(keyOf(message), RocketMQLocalTransactionState.UNKNOWN);
    }

    private static String keyOf(Message<?> message) {
        return String.valueOf(message.getHeaders().get(RocketMQHeaders.PREFIX + RocketMQHeaders.KEYS));
    }
}
