package shop;

/** What the shop sends as JSON. */
public record Order(String key, String body) {
    static Order of(String key) {
        return new Order(key, "body of " + key);
    }
}
