"""A process that follows running RocketMQ brokers, each into a store of its own."""
