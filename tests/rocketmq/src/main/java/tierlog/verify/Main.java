package tierlog.verify;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Opens stores and index files with the classes of Apache RocketMQ and tells what they find.
 *
 * <p>Reads one JSON array of jobs per line from standard input and writes one JSON array of answers, in the order of
 * the jobs, per line to standard output. Jobs of one line run side by side: closing a store is mostly waiting. A job
 * that fails answers {@code {"error": stack trace}}. The libraries log to standard error. Ends with the input.
 */
public final class Main {
    private Main() {
    }

    /** No arguments. */
    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService workers = Executors.newCachedThreadPool();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<Future<Map<String, Object>>> running = new ArrayList<>();
            JSONArray jobs = JSON.parseArray(line);
            for (int i = 0; i < jobs.size(); i++) {
                JSONObject job = jobs.getJSONObject(i);
                running.add(workers.submit(() -> answer(job)));
            }
            List<Map<String, Object>> results = new ArrayList<>();
            for (Future<Map<String, Object>> each : running) {
                results.add(each.get());
            }
            answers.println(JSON.toJSONString(results, JSONWriter.Feature.WriteNulls));
        }
        System.exit(0); // a store whose opening failed leaves threads behind that would keep the process alive
    }

    private static Map<String, Object> answer(JSONObject job) {
        try {
            return kindOf(job).call();
        } catch (Throwable failure) { // an Error too: whoever asked waits for an answer
            StringWriter trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            return Map.of("error", trace.toString());
        }
    }

    private static Callable<Map<String, Object>> kindOf(JSONObject job) {
        String kind = job.getString("kind");
        switch (kind) {
            case "store":
                return () -> StoreJob.run(job);
            case "compactedIndex":
                return () -> CompactedIndexJob.run(job);
            default:
                throw new IllegalArgumentException("no such kind of job: " + kind);
        }
    }
}
