import java.util.Iterator;
import java.util.Map;

/** Writes maps, lists, text, numbers and truth values as JSON on one line. */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            out.append('{');
            for (Iterator<? extends Map.Entry<?, ?>> each = map.entrySet().iterator(); each.hasNext(); ) {
                Map.Entry<?, ?> entry = each.next();
                text(out, String.valueOf(entry.getKey()));
                out.append(':');
                write(out, entry.getValue());
                if (each.hasNext()) {
                    out.append(',');
                }
            }
            out.append('}');
        } else if (value instanceof Iterable<?> list) {
            out.append('[');
            for (Iterator<?> each = list.iterator(); each.hasNext(); ) {
                write(out, each.next());
                if (each.hasNext()) {
                    out.append(',');
                }
            }
            out.append(']');
        } else {
            text(out, String.valueOf(value));
        }
    }

    private static void text(StringBuilder out, String value) {
        out.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
