"""The gRPC door: the service `apache.rocketmq.v2.MessagingService`."""
