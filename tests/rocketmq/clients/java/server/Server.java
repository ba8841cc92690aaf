import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * A server of RocketMQ as its own start class starts it: {@code MAIN_CLASS ARGUMENTS...}. Answers every line once that
 * has started it; ends as by a signal when the line is {@code stop}, and at once when its input ends.
 */
final class Server {
    private Server() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        String[] its = Arrays.copyOfRange(arguments, 1, arguments.length);
        Class.forName(arguments[0]).getMethod("main", String[].class).invoke(null, (Object) its);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("stop")) {
                System.exit(0);
            }
            answers.println("here");
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
