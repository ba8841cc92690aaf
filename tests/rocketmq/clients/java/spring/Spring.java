import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.springframework.boot.Banner;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ApplicationContext;
import org.springframework.messaging.MessagingException;
import shop.Application;
import shop.Inbox;
import shop.Orders;

/** A Spring Boot application with RocketMQ's starter, told what to send; its listeners run from the beginning. */
final class Spring {
    private final Orders orders;
    private final Inbox inbox;

    private Spring(ApplicationContext context) {
        orders = context.getBean(Orders.class);
        inbox = context.getBean(Inbox.class);
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver();
        Spring spring = new Spring(new SpringApplicationBuilder(Application.class)
            .bannerMode(Banner.Mode.OFF).logStartupInfo(false).run(arguments));
        driver
            .with("send", call -> causeTold(spring::send, call))
            .with("transaction", call -> causeTold(spring::transaction, call))
            .with("received", spring::received)
            .run();
    }

    /** Spring wraps what the client raises, and its text leaves out why. */
    private static Object causeTold(Driver.Command command, Call call) throws Exception {
        try {
            return command.run(call);
        } catch (MessagingException error) {
            throw new IllegalStateException(error.getMostSpecificCause());
        }
    }

    private static List<String> keys(Call call) {
        List<String> made = new ArrayList<>();
        for (int number = 0; number < call.number("count", 1); number++) {
            made.add(call.text("prefix") + "-" + number);
        }
        return made;
    }

    private static String destination(Call call) {
        String tag = call.text("tag", "");
        return tag.isEmpty() ? call.text("topic") : call.text("topic") + ":" + tag;
    }

    private Object send(Call call) throws Exception {
        String to = destination(call);
        List<String> keys = keys(call);
        List<Object> told = new ArrayList<>();
        switch (call.text("how", "sync")) {
            case "batch":
                return orders.batch(to, keys);
            case "async":
                told.addAll(orders.async(to, keys));
                break;
            case "oneway":
                keys.forEach(key -> orders.oneWay(to, key));
                break;
            case "ordered":
                for (int number = 0; number < keys.size(); number++) {
                    String shard = String.valueOf(number % call.number("shards", 1));
                    told.add(orders.orderly(to, keys.get(number), shard));
                }
                break;
            case "level":
                keys.forEach(key -> told.add(orders.afterLevel(to, key, call.number("level", 1))));
                break;
            case "delayed":
                keys.forEach(key -> told.add(orders.after(to, key, call.number("delay_ms", 1_000))));
                break;
            default:
                keys.forEach(key -> told.add(orders.sync(to, key)));
        }
        return Map.of("messages", told);
    }

    private Object transaction(Call call) {
        List<Object> told = new ArrayList<>();
        for (String key : keys(call)) {
            told.add(orders.inTransaction(destination(call), key, call.text("now"), call.text("later", "UNKNOWN")));
        }
        return Map.of("messages", told);
    }

    private Object received(Call call) throws InterruptedException {
        return Map.of("messages", inbox.await(call.text("listener"), call.text("prefix", ""),
            call.number("count", 1), call.number("limit_ms", 30_000)));
    }
}
