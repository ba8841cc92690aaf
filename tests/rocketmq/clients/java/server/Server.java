import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * A server of RocketMQ as its own start class starts it: {@code broker ARGUMENTS...} or {@code nameserver ARGUMENTS...}.
 * Answers every line once that has started it; before that, a broker removes expired files when the line is
 * {@code remove}, and tells the nameservers of itself when it is {@code register}. Ends as by a signal when the line is
 * {@code stop}, and at once when its input ends.
 */
final class Server {
    private static final int MANUAL_ROUNDS = 20;

    private Server() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        String[] its = Arrays.copyOfRange(arguments, 1, arguments.length);
        BrokerController broker = null;
        if (arguments[0].equals("broker")) {
            broker = BrokerStartup.start(BrokerStartup.createBrokerController(its));
        } else {
            NamesrvStartup.main(its);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("stop")) {
                System.exit(0);
            }
            if (line.equals("remove")) {
                remove((DefaultMessageStore) broker.getMessageStore());
            } else if (line.equals("register")) {
                broker.registerBrokerAll(true, false, true);
            }
            answers.println("here");
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** As mqadmin deleteExpiredCommitLog has it done, in as many rounds; of itself a broker begins after a minute. */
    private static void remove(DefaultMessageStore store) throws Exception {
        Method round = DefaultMessageStore.class.getDeclaredMethod("cleanFilesPeriodically");
        round.setAccessible(true);
        store.executeDeleteFilesManually();
        for (int number = 0; number < MANUAL_ROUNDS; number++) {
            round.invoke(store);
        }
    }
}
