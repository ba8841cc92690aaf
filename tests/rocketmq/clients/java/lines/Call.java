import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

/** One line of the test: {@code name?argument=value&argument=value}, percent-encoded. */
final class Call {
    final String name;
    private final Map<String, String> arguments = new LinkedHashMap<>();

    Call(String line) {
        int end = line.indexOf('?');
        name = end < 0 ? line : line.substring(0, end);
        if (end >= 0 && end + 1 < line.length()) {
            for (String pair : line.substring(end + 1).split("&")) {
                int equals = pair.indexOf('=');
                arguments.put(decoded(pair.substring(0, equals)), decoded(pair.substring(equals + 1)));
            }
        }
    }

    private static String decoded(String part) {
        return URLDecoder.decode(part, StandardCharsets.UTF_8);
    }

    String text(String argument) {
        String value = arguments.get(argument);
        if (value == null) {
            throw new IllegalArgumentException(name + " needs " + argument);
        }
        return value;
    }

    String text(String argument, String otherwise) {
        return arguments.getOrDefault(argument, otherwise);
    }

    int number(String argument, int otherwise) {
        return arguments.containsKey(argument) ? Integer.parseInt(text(argument)) : otherwise;
    }

    /** Those whose name begins so, without the beginning. */
    Map<String, String> beginningWith(String beginning) {
        Map<String, String> found = new LinkedHashMap<>();
        arguments.forEach((key, value) -> {
            if (key.startsWith(beginning)) {
                found.put(key.substring(beginning.length()), value);
            }
        });
        return found;
    }
}
