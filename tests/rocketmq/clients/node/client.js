// Node's gRPC client: answers each line of standard input, name?argument=value&..., with a line of JSON.
'use strict';

const readline = require('node:readline');
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const answers = process.stdout.write.bind(process.stdout);
process.stdout.write = process.stderr.write.bind(process.stderr); // libraries print as they like
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const producers = new Map();
const running = new Map();

const common = (call) => ({ endpoints: call.address, namespace: '', requestTimeout: 20000 });

// What one consumer got and how it answered.
class Consumption {
  constructor(call) {
    this.call = call;
    this.got = [];
    this.deliveries = new Map();
    this.done = 0;
    this.over = false;
    const options = {
      ...common(call), consumerGroup: call.group, subscriptions: new Map([[call.topic, call.tags ?? '*']]),
    };
    if (call.kind === 'simple') {
      this.consumer = new SimpleConsumer({ ...options, awaitDuration: 2000 });
    } else {
      const consume = async (message) => (this.takes(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE);
      this.consumer = new PushConsumer({ ...options, messageListener: { consume } });
    }
  }

  async start() {
    await this.consumer.startup();
    if (this.call.kind === 'simple') {
      this.loop = this.receive();
    }
    return this;
  }

  async receive() {
    while (!this.over) {
      try {
        for (const message of await this.consumer.receive(16, Number(this.call.invisible_ms ?? 15000))) {
          if (this.takes(message)) {
            await this.consumer.ack(message);
          } else {
            await this.consumer.changeInvisibleDuration(message, 1000);
          }
        }
      } catch (error) {
        console.error(error); // the server may be gone for a moment
        await pause(100);
      }
    }
  }

  // Whether a delivery succeeds: of keys that end as said, the first so many do not.
  takes(message) {
    const key = message.keys.join(' ');
    let done = true;
    if (key.endsWith(this.call.failing ?? '')) {
      const before = this.deliveries.get(key) ?? 0;
      this.deliveries.set(key, before + 1);
      done = before >= Number(this.call.fail ?? 0);
    }
    this.got.push({
      topic: message.topic, key, tag: message.tag ?? null, body: message.body.toString('hex'), id: message.messageId,
      message_group: message.messageGroup ?? null, attempts_before: message.deliveryAttempt - 1, done,
    });
    this.done += done ? 1 : 0;
    return done;
  }

  async stop() {
    this.over = true;
    await this.loop;
    await this.consumer.shutdown();
  }
}

const commands = {
  async send(call) {
    if (!producers.has(call.topic)) {
      const producer = new Producer({ ...common(call), topic: call.topic });
      await producer.startup();
      producers.set(call.topic, producer);
    }
    const messages = [];
    for (let number = 0; number < Number(call.count ?? 1); number++) {
      const key = `${call.prefix}-${number}`;
      const body = Buffer.from(`body of ${key}`);
      const receipt = await producers.get(call.topic).send({
        topic: call.topic, tag: call.tag, keys: [key], body, messageGroup: call.message_group,
        ...(call.delay_ms ? { delay: Number(call.delay_ms) } : {}),
      });
      messages.push({ key, body: body.toString('hex'), id: receipt.messageId, status: 'SEND_OK' });
    }
    return { messages };
  },

  async consume(call) {
    running.set(call.id, await new Consumption(call).start());
    return {};
  },

  async await(call) {
    const consumption = running.get(call.id);
    const deadline = Date.now() + Number(call.limit_ms);
    while (consumption.done < Number(call.count) && Date.now() < deadline) {
      await pause(20);
    }
    return { messages: consumption.got };
  },

  async stop(call) {
    await running.get(call.id).stop();
    running.delete(call.id);
    return {};
  },
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, words] = line.split(/\?(.*)/s);
    let answer;
    try {
      answer = await commands[name](Object.fromEntries(new URLSearchParams(words)));
    } catch (error) {
      answer = { error: String(error.stack ?? error) };
    }
    answers(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

main();
