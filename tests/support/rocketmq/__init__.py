"""Stores of Apache RocketMQ, and RocketMQ's own answers."""
