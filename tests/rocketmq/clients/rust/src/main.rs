//! Rust's gRPC client: answers each line of standard input, `name?argument=value&...`, with a line of JSON.

use std::collections::HashMap;
use std::error::Error;
use std::io::{stdin, BufRead};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::percent_decode_str;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::task::JoinHandle;
use tokio::time::{sleep, Instant};

type Failure = Box<dyn Error + Send + Sync>;
type Answer = Result<Value, Failure>;
type Later = Arc<Mutex<HashMap<String, String>>>;

/// How long a call waits for messages.
const POLL: Duration = Duration::from_secs(2);
/// After a receive that failed, and between two looks at what has come.
const PAUSE: Duration = Duration::from_millis(20);

/// The arguments of a line.
struct Call(HashMap<String, String>);

impl Call {
    fn of(arguments: &str) -> Result<Call, Failure> {
        let mut found = HashMap::new();
        for argument in arguments.split('&').filter(|argument| !argument.is_empty()) {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            let value = percent_decode_str(value).decode_utf8()?;
            found.insert(name.to_string(), value.into_owned());
        }
        Ok(Call(found))
    }

    fn given(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn text(&self, name: &str) -> &str {
        self.given(name).unwrap_or_default()
    }

    fn number(&self, name: &str, otherwise: u64) -> Result<u64, Failure> {
        Ok(self.given(name).map_or(Ok(otherwise), str::parse)?)
    }
}

fn options(call: &Call) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(call.text("address"));
    options.set_timeout(Duration::from_secs(20));
    options.set_long_polling_timeout(POLL);
    options
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is right").as_millis() as u64
}

fn resolution(name: Option<&str>) -> TransactionResolution {
    match name {
        Some("COMMIT") => TransactionResolution::COMMIT,
        Some("ROLLBACK") => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

// ---- producing

fn key_of(call: &Call, number: u64) -> String {
    format!("{}-{number}", call.text("prefix"))
}

fn described(call: &Call, key: &str) -> Result<MessageBuilder, Failure> {
    let mut builder = MessageBuilder::builder()
        .set_topic(call.text("topic"))
        .set_keys(vec![key])
        .set_body(format!("body of {key}").into_bytes());
    if let Some(tag) = call.given("tag") {
        builder = builder.set_tag(tag);
    }
    if let Some(group) = call.given("message_group") {
        builder = builder.set_message_group(group);
    }
    let delay_ms = call.number("delay_ms", 0)?;
    if delay_ms > 0 {
        // the library knows seconds only
        builder = builder.set_delivery_timestamp((now_ms() + delay_ms).div_ceil(1_000) as i64);
    }
    let properties = call.0.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix("property.")?;
        Some((name.to_string(), value.clone()))
    });
    Ok(builder.set_properties(properties.collect()))
}

fn sent(key: &str, id: &str) -> Value {
    json!({"key": key, "body": hex::encode(format!("body of {key}")), "status": "SEND_OK", "id": id})
}

async fn send(producer: &Producer, call: &Call) -> Answer {
    let keys: Vec<String> = (0..call.number("count", 1)?).map(|number| key_of(call, number)).collect();
    let mut messages = Vec::new();
    for key in &keys {
        messages.push(described(call, key)?.build()?);
    }
    let receipts = if call.given("how") == Some("batch") {
        producer.batch_send(messages).await?
    } else {
        one_by_one(producer, messages).await?
    };
    let told = keys.iter().zip(&receipts).map(|(key, receipt)| sent(key, receipt.message_id()));
    Ok(json!({"messages": told.collect::<Vec<_>>()}))
}

async fn one_by_one(producer: &Producer, messages: Vec<impl Message>) -> Result<Vec<SendReceipt>, Failure> {
    let mut receipts = Vec::new();
    for message in messages {
        receipts.push(producer.send(message).await?);
    }
    Ok(receipts)
}

/// `now` is decided after the sending; `later` is told when the server asks.
async fn transaction(producer: &Producer, later: &Later, call: &Call) -> Answer {
    let key = key_of(call, 0);
    later.lock().unwrap().insert(key.clone(), call.text("later").to_string());
    let message = described(call, &key)?.enable_transaction().build()?;
    let transaction = producer.send_transaction_message(message).await?;
    let told = sent(&key, transaction.message_id());
    match resolution(call.given("now")) {
        TransactionResolution::COMMIT => transaction.commit().await?,
        TransactionResolution::ROLLBACK => transaction.rollback().await?,
        TransactionResolution::UNKNOWN => {}
    }
    Ok(json!({"messages": [told]}))
}

// ---- consuming

/// What one consumer got and how it answered.
#[derive(Default)]
struct Consumption {
    got: Vec<Value>,
    deliveries: HashMap<String, u64>,
    done: u64,
}

impl Consumption {
    /// Whether a delivery succeeds: of keys that end as said, the first so many do not.
    fn takes(&mut self, message: &MessageView, failing: &str, failures: u64) -> bool {
        let key = message.keys().join(" ");
        let mut done = true;
        if key.ends_with(failing) {
            let deliveries = self.deliveries.entry(key.clone()).or_default();
            *deliveries += 1;
            done = *deliveries > failures;
        }
        self.done += u64::from(done);
        self.got.push(json!({
            "topic": message.topic(), "key": key, "tag": message.tag(), "body": hex::encode(message.body()),
            "id": message.message_id(), "message_group": message.message_group(),
            "attempts_before": message.delivery_attempt() - 1, "born_ms": message.born_timestamp() * 1_000,
            "at_ms": now_ms(), "properties": message.properties(), "done": done,
        }));
        done
    }
}

struct Running {
    consumption: Arc<Mutex<Consumption>>,
    over: Arc<AtomicBool>,
    receiving: JoinHandle<SimpleConsumer>,
}

/// Receives until it is over. What succeeds is acknowledged; what fails comes again when its time is over, as the
/// library cannot ask for it sooner.
async fn begun(call: Call) -> Result<Running, Failure> {
    if call.given("kind") != Some("simple") {
        return Err("the library has simple consumers only".into());
    }
    let topic = call.text("topic").to_string();
    let mut named = SimpleConsumerOption::default();
    named.set_topics(vec![topic.as_str()]);
    named.set_consumer_group(call.text("group"));
    let mut consumer = SimpleConsumer::new(named, options(&call))?;
    consumer.start().await?;
    let filter = FilterExpression::new(FilterType::Tag, call.given("tags").unwrap_or("*"));
    let invisible = Duration::from_millis(call.number("invisible_ms", 10_000)?);
    let failures = call.number("fail", 0)?;
    let consumption = Arc::<Mutex<Consumption>>::default();
    let over = Arc::<AtomicBool>::default();
    let (got, ends) = (consumption.clone(), over.clone());
    let receiving = tokio::spawn(async move {
        while !ends.load(Ordering::Relaxed) {
            let found = consumer.receive_with(&topic, &filter, 16, invisible).await;
            if let Err(error) = &found {
                eprintln!("receive: {error}");
                sleep(PAUSE).await;
            }
            for message in found.unwrap_or_default() {
                let done = got.lock().unwrap().takes(&message, call.text("failing"), failures);
                if done {
                    if let Err(error) = consumer.ack(&message).await {
                        eprintln!("ack: {error}");
                    }
                }
            }
        }
        consumer
    });
    Ok(Running { consumption, over, receiving })
}

async fn told(running: &Running, call: &Call) -> Answer {
    let deadline = Instant::now() + Duration::from_millis(call.number("limit_ms", 30_000)?);
    let count = call.number("count", 1)?;
    loop {
        if running.consumption.lock().unwrap().done >= count || Instant::now() >= deadline {
            return Ok(json!({"messages": running.consumption.lock().unwrap().got}));
        }
        sleep(PAUSE).await;
    }
}

async fn stop(running: Running) -> Answer {
    running.over.store(true, Ordering::Relaxed);
    running.receiving.await?.shutdown().await?;
    Ok(json!({}))
}

// ---- the lines

#[derive(Default)]
struct Client {
    producers: HashMap<String, Producer>,
    running: HashMap<String, Running>,
    later: Later,
}

impl Client {
    async fn answer(&mut self, line: &str) -> Answer {
        let (name, arguments) = line.split_once('?').unwrap_or((line, ""));
        let call = Call::of(arguments)?;
        let id = call.text("id").to_string();
        match name {
            "send" => send(self.producer(&call).await?, &call).await,
            "transaction" => {
                let later = self.later.clone();
                transaction(self.producer(&call).await?, &later, &call).await
            }
            "consume" => {
                self.running.insert(id, begun(call).await?);
                Ok(json!({}))
            }
            "await" => told(self.running.get(&id).ok_or("no such consumer")?, &call).await,
            "stop" => stop(self.running.remove(&id).ok_or("no such consumer")?).await,
            _ => Err(format!("no such command: {line}").into()),
        }
    }

    async fn producer(&mut self, call: &Call) -> Result<&Producer, Failure> {
        let topic = call.text("topic").to_string();
        if !self.producers.contains_key(&topic) {
            let mut named = ProducerOption::default();
            named.set_topics(vec![topic.as_str()]);
            let later = self.later.clone();
            let check = move |_, message: MessageView| {
                let later = later.lock().unwrap();
                resolution(message.keys().first().and_then(|key| later.get(key)).map(String::as_str))
            };
            let mut made = Producer::new_transaction_producer(named, options(call), Box::new(check))?;
            made.start().await?;
            self.producers.insert(topic.clone(), made);
        }
        Ok(&self.producers[&topic])
    }
}

#[tokio::main]
async fn main() {
    let mut client = Client::default();
    for line in stdin().lock().lines() {
        let answer = client.answer(&line.expect("standard input is text")).await;
        println!("{}", answer.unwrap_or_else(|error| json!({"error": error.to_string()})));
    }
}
