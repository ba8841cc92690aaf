package shop;

import java.util.Map;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.springframework.stereotype.Component;

/** The shop's listeners, one for each way to consume. */
final class Listeners {
    private Listeners() {
    }

    /** Of a key with {@code -bad-} in it no delivery succeeds, of one with {@code -late-} not the first. */
    @Component
    @RocketMQMessageListener(topic = "${shop.orders}", consumerGroup = "${shop.orders}-readers",
        maxReconsumeTimes = 1, delayLevelWhenNextConsume = 1)
    static class Concurrently implements RocketMQListener<MessageExt> {
        private final Inbox inbox;

        Concurrently(Inbox inbox) {
            this.inbox = inbox;
        }

        @Override
        public void onMessage(MessageExt message) {
            inbox.put("concurrently", message);
            String key = message.getKeys();
            if (key.contains("-bad-") || key.contains("-late-") && message.getReconsumeTimes() == 0) {
                throw new IllegalStateException("cannot do " + key);
            }
        }
    }

    /** Each queue in its order. */
    @Component
    @RocketMQMessageListener(topic = "${shop.steps}", consumerGroup = "${shop.steps}-readers",
        consumeMode = ConsumeMode.ORDERLY)
    static class Orderly implements RocketMQListener<MessageExt> {
        private final Inbox inbox;

        Orderly(Inbox inbox) {
            this.inbox = inbox;
        }

        @Override
        public void onMessage(MessageExt message) {
            inbox.put("orderly", message);
        }
    }

    /** Two tags of the three, and their JSON as the shop's own class. */
    @Component
    @RocketMQMessageListener(topic = "${shop.tagged}", consumerGroup = "${shop.tagged}-readers",
        selectorExpression = "a || c")
    static class Tagged implements RocketMQListener<Order> {
        private final Inbox inbox;

        Tagged(Inbox inbox) {
            this.inbox = inbox;
        }

        @Override
        public void onMessage(Order order) {
            inbox.put("tagged", Map.of("key", order.key(), "body", order.body()));
        }
    }
}
