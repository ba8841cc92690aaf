"""The remoting door: RocketMQ's protocol of length-prefixed frames."""
