"""Python's gRPC client in an environment of its own: answers ``name?argument=value&…`` with a line of JSON."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

Call = dict[str, str]


def configuration(call: Call) -> Any:
    return ClientConfiguration(call["address"], Credentials(), request_timeout=20)


class Consumption(MessageListener):  # type: ignore[misc]  # the library is only in the other environment
    """What one consumer got and how it answered."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._deliveries: Counter[str] = Counter()
        self._over = threading.Event()
        self._done = 0
        self._got: list[dict[str, Any]] = []
        topics = {call["topic"]: FilterExpression(call.get("tags", "*"))}
        if call.get("kind") == "simple":
            self._consumer = SimpleConsumer(configuration(call), call["group"], topics, 2)
            self._consumer.startup()
            self._loop = threading.Thread(target=self._receive, daemon=True)
            self._loop.start()
        else:
            self._consumer = PushConsumer(configuration(call), call["group"], self, topics)
            self._consumer.startup()

    def consume(self, message: Any) -> Any:
        """As the push consumer asks."""
        return ConsumeResult.SUCCESS if self.takes(message) else ConsumeResult.FAILURE

    def _receive(self) -> None:
        while not self._over.is_set():
            try:
                for message in self._consumer.receive(16, int(self._call.get("invisible_ms", 15_000)) // 1_000) or []:
                    if self.takes(message):
                        self._consumer.ack(message)
                    else:
                        self._consumer.change_invisible_duration(message, 1)
            except Exception as error:  # whatever the library raises: the server may be gone for a moment
                print(repr(error), file=sys.stderr)
                time.sleep(0.1)

    def takes(self, message: Any) -> bool:
        """Whether a delivery succeeds: of keys that end as said, the first so many do not."""
        key = " ".join(message.keys)
        with self._lock:
            done = True
            if key.endswith(self._call.get("failing", "")):
                self._deliveries[key] += 1
                done = self._deliveries[key] > int(self._call.get("fail", 0))
            self._got.append(
                {
                    "topic": message.topic, "key": key, "tag": message.tag, "body": bytes(message.body).hex(),
                    "id": message.message_id, "message_group": message.message_group,
                    "attempts_before": message.delivery_attempt - 1, "done": done,
                }
            )  # fmt: skip
            self._done += done
        return done

    def told(self, call: Call) -> dict[str, Any]:
        """What it has got when so many are done, or when time is over."""
        deadline_s = time.monotonic() + int(call["limit_ms"]) / 1_000
        while self._done < int(call["count"]) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        with self._lock:
            return {"messages": list(self._got)}

    def stop(self) -> None:
        """It gets nothing more."""
        self._over.set()
        if self._call.get("kind") == "simple":
            self._loop.join()
        self._consumer.shutdown()


class Client:
    """The commands."""

    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._running: dict[str, Consumption] = {}

    def answer(self, line: str) -> dict[str, Any]:
        """To one line."""
        name, _, arguments = line.partition("?")
        call = dict(parse_qsl(arguments, keep_blank_values=True))
        if name == "send":
            return self._send(call)
        if name == "consume":
            self._running[call["id"]] = Consumption(call)
        elif name == "await":
            return self._running[call["id"]].told(call)
        elif name == "stop":
            self._running.pop(call["id"]).stop()
        else:
            raise ValueError(f"no such command: {name}")
        return {}

    def _send(self, call: Call) -> dict[str, Any]:
        topic = call["topic"]
        if topic not in self._producers:
            producer = Producer(configuration(call), (topic,))
            producer.startup()
            self._producers[topic] = producer
        told = []
        for number in range(int(call.get("count", 1))):
            key = f"{call['prefix']}-{number}"
            body = f"body of {key}".encode()
            message = Message()
            message.topic, message.keys, message.body = topic, key, body
            if "tag" in call:
                message.tag = call["tag"]
            if "message_group" in call:
                message.message_group = call["message_group"]
            if "delay_ms" in call:
                message.delivery_timestamp = math.ceil(time.time() + int(call["delay_ms"]) / 1_000)
            receipt = self._producers[topic].send(message)
            told.append({"key": key, "body": body.hex(), "id": receipt.message_id, "status": "SEND_OK"})
        return {"messages": told}


def main() -> None:
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print as they like
    client = Client()
    for line in sys.stdin:
        try:
            answer = client.answer(line.rstrip("\n"))
        except Exception as error:  # whatever a library raises is an answer
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # whatever threads a library still has


if __name__ == "__main__":
    main()
