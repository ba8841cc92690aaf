package tierlog.peer;

import com.alibaba.fastjson2.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Made-up keys and bodies, those of {@code benchmarks/corpus.py}, and what all runs share. */
final class Corpus {
    static final String TOPIC = "TopicTest";
    private static final int BODIES = 1024;
    private static final HexFormat HEX = HexFormat.of();

    private static String[] keys = {};
    private static boolean sequential;

    private Corpus() {
    }

    /**
     * As many keys as {@code n} says: 16 hex digits whose hashes lie anywhere, or, if {@code keys} is {@code seq},
     * key-0, key-1, ... whose hashes are neighbours. They are kept for the next run: made once, they cost it nothing.
     */
    static String[] keys(JSONObject command) {
        int n = command.getIntValue("n");
        boolean wanted = "seq".equals(command.getString("keys"));
        if (keys.length != n || sequential != wanted) {
            keys = new String[0]; // gives the old ones back first
            String[] made = new String[n];
            for (int i = 0; i < n; i++) {
                made[i] = wanted ? "key-" + i : HEX.toHexDigits(mixed(i));
            }
            keys = made;
            sequential = wanted;
        }
        return keys;
    }

    /** SplitMix64: the number that a counter stands for. */
    static long mixed(long counter) {
        long z = (counter + 1) * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    /** Random bytes; message i takes body i modulo their number. */
    static byte[][] bodies(int size) {
        Random random = new Random(1);
        byte[][] bodies = new byte[BODIES][size];
        for (byte[] body : bodies) {
            random.nextBytes(body);
        }
        return bodies;
    }

    /** Numbers of the keys to ask for: any of {@code stored}, drawn again in every run. */
    static int[] drawn(int queries, int stored) {
        int[] numbers = new int[queries];
        for (int i = 0; i < queries; i++) {
            numbers[i] = (int) Math.floorMod(mixed(~(long) i), (long) stored);
        }
        return numbers;
    }

    /** An answer that a caller may add to. */
    static Map<String, Object> rate(long n, long nanos) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("n", n);
        answer.put("seconds", nanos / 1e9);
        answer.put("rate", n * 1e9 / Math.max(1, nanos));
        return answer;
    }

    static void remove(Path folder) throws Exception {
        if (!Files.exists(folder)) {
            return;
        }
        List<Path> found;
        try (Stream<Path> walk = Files.walk(folder)) {
            found = walk.sorted(Comparator.reverseOrder()).collect(Collectors.toList());
        }
        for (Path path : found) {
            Files.deleteIfExists(path);
        }
    }
}
