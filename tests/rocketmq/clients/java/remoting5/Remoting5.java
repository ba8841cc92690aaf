import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The remoting client of version 5, and the tool mqadmin, which lies beside it. */
final class Remoting5 {
    private Remoting5() {
    }

    public static void main(String[] arguments) throws Exception {
        Producers producers = new Producers();
        Consumers consumers = new Consumers();
        Remoting.driver(producers, consumers)
            .with("consume-popped", call -> consumePopped(call, consumers))
            .with("recall", call -> recall(call, producers))
            .with("mqadmin", Remoting5::mqadmin)
            .run();
    }

    /** Sends one message that is not due yet, and takes it back. */
    private static Object recall(Call call, Producers producers) throws Exception {
        DefaultMQProducer producer = producers.of(call);
        SendResult sent = producer.send(Messages.described(call).get(0));
        return Map.of("sent", sent.getMsgId(), "recalled",
            producer.recallMessage(call.text("topic"), sent.getRecallHandle()));
    }

    /** The server says which consumer gets what; where a group is in the mode POP, the consumer pops. */
    private static Object consumePopped(Call call, Consumers consumers) throws Exception {
        Consumers.Consumption consumption = new Consumers.Consumption(call);
        DefaultMQPushConsumer consumer = Consumers.push(call, consumption);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(call.number("invisible_ms", 60_000));
        consumer.start();
        consumers.started(call.text("id"), consumer, consumption);
        return Map.of();
    }

    /** What one command prints; its words are divided by newlines. */
    private static Object mqadmin(Call call) {
        PrintStream before = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(call.text("words").split("\n"), null);
        } finally {
            System.setOut(before);
        }
        return Map.of("printed", printed.toString(StandardCharsets.UTF_8));
    }
}
