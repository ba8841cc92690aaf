import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** Answers each line of standard input with a line of JSON, until the input ends. */
final class Driver {
    /** What a line asks for; the answer is a value that {@link Json} writes. */
    interface Command {
        Object run(Call call) throws Exception;
    }

    private final Map<String, Command> commands = new LinkedHashMap<>();
    private final PrintStream answers = System.out;

    /** From now on, libraries that print as they like do it to standard error. */
    Driver() {
        System.setOut(System.err);
    }

    Driver with(String name, Command command) {
        commands.put(name, command);
        return this;
    }

    void run() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(answer(new Call(line)));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String answer(Call call) {
        try {
            Command command = commands.get(call.name);
            if (command == null) {
                throw new IllegalArgumentException("no such command: " + call.name);
            }
            return Json.of(command.run(call));
        } catch (Exception | LinkageError error) {
            error.printStackTrace();
            return Json.of(Map.of("error", String.valueOf(error)));
        }
    }
}
