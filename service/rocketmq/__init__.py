"""The doors for clients of Apache RocketMQ: a nameserver and a broker to them, one store behind."""
