/** The remoting client, as every version has it. */
final class Remoting {
    private Remoting() {
    }

    public static void main(String[] arguments) throws Exception {
        driver(new Producers(), new Consumers()).run();
    }

    static Driver driver(Producers producers, Consumers consumers) {
        Floods floods = new Floods(producers);
        return new Driver()
            .with("send", producers::send)
            .with("flood", floods::start)
            .with("flood-end", floods::end)
            .with("query", producers::query)
            .with("view", producers::view)
            .with("transaction", producers::transaction)
            .with("asked", producers::asked)
            .with("consume", consumers::start)
            .with("await", consumers::await)
            .with("stop", consumers::stop);
    }
}
