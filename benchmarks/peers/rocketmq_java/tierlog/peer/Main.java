package tierlog.peer;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;

/**
 * Does once what it is told, with the classes of Apache RocketMQ, and says how long that took.
 *
 * <p>Reads one JSON object per line from standard input, {@code {"command": name, ...}}, and answers each with one line:
 * {@code {"seconds": .., "rate": per second, ...}}, or {@code {"error": stack trace}}. The commands are methods of
 * {@link StoreRuns} and {@link IndexRuns}. One process does a whole series, so that all but the first run are compiled.
 * Argument: a folder for files. The libraries log to standard error. Ends with the input.
 */
public final class Main {
    private final StoreRuns stores;
    private final IndexRuns index;

    private Main(Path folder) {
        stores = new StoreRuns(folder);
        index = new IndexRuns(folder);
    }

    /** One argument: the folder. */
    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Main main = new Main(Path.of(args[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.toJSONString(main.answer(JSON.parseObject(line))));
        }
        Runtime.getRuntime().halt(0); // whoever asked removes the folder; there is nothing to close properly
    }

    private Map<String, Object> answer(JSONObject command) {
        try {
            System.gc(); // not within what is timed
            return run(command);
        } catch (Throwable failure) { // an Error too: whoever asked waits for an answer
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            return Map.of("error", trace.toString());
        }
    }

    private Map<String, Object> run(JSONObject command) throws Exception {
        String name = command.getString("command");
        switch (name) {
            case "append":
                return stores.append(command);
            case "fill":
                return stores.fill(command);
            case "consume":
                return stores.consume(command);
            case "query_message":
                return stores.queryMessage(command);
            case "wait_to_be_killed":
                return stores.waitToBeKilled(command);
            case "recover":
                return stores.recover();
            case "index_put":
                return index.put(command);
            case "compact":
                return index.compact();
            case "query_before":
                return index.queryBefore(command);
            case "query_after":
                return index.queryAfter(command);
            default:
                throw new IllegalArgumentException("no such command: " + name);
        }
    }
}
