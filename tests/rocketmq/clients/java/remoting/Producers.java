import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends in every way that the client has and looks up what was sent. */
final class Producers {
    private static final int TIMEOUT_MS = 20_000;
    private final Map<String, DefaultMQProducer> started = new HashMap<>();
    private TransactionMQProducer transactions;
    private final Decisions decisions = new Decisions();

    /** The one of an address, which stays. */
    synchronized DefaultMQProducer of(Call call) throws MQClientException {
        String address = call.text("address");
        DefaultMQProducer producer = started.get(address);
        if (producer == null) {
            producer = new DefaultMQProducer("producers");
            configure(producer, address);
            producer.start();
            started.put(address, producer);
        }
        return producer;
    }

    private static void configure(DefaultMQProducer producer, String address) {
        producer.setNamesrvAddr(address);
        producer.setInstanceName(address);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setPollNameServerInterval(Integer.getInteger("tests.pollNameServerMs", 30_000));
    }

    Object send(Call call) throws Exception {
        List<Message> messages = Messages.described(call);
        DefaultMQProducer producer = of(call);
        switch (call.text("how", "sync")) {
            case "sync":
                return sync(producer, messages);
            case "async":
                return async(producer, messages);
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return Map.of("messages", List.of());
            case "batch":
                SendResult result = producer.send(messages);
                return Map.of("status", result.getSendStatus(), "id", result.getMsgId(), "queue",
                    result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset());
            case "ordered":
                return ordered(producer, messages, call.number("shards", 1));
            default:
                throw new IllegalArgumentException(call.text("how"));
        }
    }

    private static Object sync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<Object> told = new ArrayList<>();
        for (Message message : messages) {
            told.add(Messages.sent(message, producer.send(message)));
        }
        return Map.of("messages", told);
    }

    private static Object async(DefaultMQProducer producer, List<Message> messages) throws Exception {
        List<Object> told = Collections.synchronizedList(new ArrayList<>());
        List<Object> errors = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch answered = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    told.add(Messages.sent(message, result));
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(String.valueOf(error));
                    answered.countDown();
                }
            });
        }
        if (!answered.await(TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            errors.add("not all were answered");
        }
        return Map.of("messages", told, "errors", errors);
    }

    /** Message number N goes to the queue of its shard, N modulo {@code shards}. */
    private static Object ordered(DefaultMQProducer producer, List<Message> messages, int shards) throws Exception {
        List<Object> told = new ArrayList<>();
        for (int number = 0; number < messages.size(); number++) {
            Message message = messages.get(number);
            told.add(Messages.sent(message, producer.send(message, Producers::queueOfShard, number % shards)));
        }
        return Map.of("messages", told);
    }

    private static MessageQueue queueOfShard(List<MessageQueue> queues, Message message, Object shard) {
        return queues.get((Integer) shard % queues.size());
    }

    @SuppressWarnings("deprecation") // its successor wants a cluster, and 4.9 does not have it
    Object query(Call call) throws Exception {
        QueryResult found = of(call).queryMessage(
            call.text("topic"), call.text("key"), call.number("limit", 32), 0, System.currentTimeMillis() + 60_000);
        List<Object> told = new ArrayList<>();
        for (MessageExt message : found.getMessageList()) {
            told.add(Messages.received(message));
        }
        return Map.of("messages", told);
    }

    @SuppressWarnings("deprecation") // where the client has it, also as its successor
    Object view(Call call) throws Exception {
        MessageExt message = of(call).viewMessage(call.text("topic"), call.text("id"));
        return Map.of("messages", List.of(Messages.received(message)));
    }

    // ---- transactions

    /** What a producer decides of its own transaction: told with the sending, and again when it is asked later. */
    private static final class Decisions implements TransactionListener {
        final Map<String, LocalTransactionState> later = new ConcurrentHashMap<>();
        final Map<String, Integer> asked = new ConcurrentHashMap<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return LocalTransactionState.valueOf((String) decision);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            asked.merge(message.getKeys(), 1, Integer::sum);
            return later.getOrDefault(message.getKeys(), LocalTransactionState.UNKNOW);
        }
    }

    /** {@code now} is decided with the sending; {@code later} is told when the server asks. */
    synchronized Object transaction(Call call) throws Exception {
        if (transactions == null) {
            transactions = new TransactionMQProducer(call.text("group", "transaction-producers"));
            configure(transactions, call.text("address"));
            transactions.setInstanceName(call.text("address") + "-transactions");
            transactions.setTransactionListener(decisions);
            transactions.start();
        }
        List<Object> told = new ArrayList<>();
        for (Message message : Messages.described(call)) {
            decisions.later.put(message.getKeys(), LocalTransactionState.valueOf(call.text("later", "UNKNOW")));
            SendResult result = transactions.sendMessageInTransaction(message, call.text("now"));
            told.add(Messages.sent(message, result));
        }
        return Map.of("messages", told);
    }

    /** How often the server asked what became of each transaction. */
    Object asked(Call call) {
        return new LinkedHashMap<>(decisions.asked);
    }
}
