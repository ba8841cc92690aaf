// The Go remoting client: answers each line of standard input, name?argument=value&..., with a line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type answer map[string]any

type call struct{ url.Values }

func (c call) text(name, otherwise string) string {
	if c.Has(name) {
		return c.Get(name)
	}
	return otherwise
}

func (c call) number(name string, otherwise int) int {
	number, err := strconv.Atoi(c.Get(name))
	if err != nil {
		return otherwise
	}
	return number
}

// consumption is what one consumer got and how it answered.
type consumption struct {
	sync.Mutex
	consumer   rocketmq.PushConsumer
	got        []answer
	deliveries map[string]int
	done       int
	failures   int
	failing    string
}

func (c *consumption) takes(message *primitive.MessageExt) bool {
	c.Lock()
	defer c.Unlock()
	key := message.GetKeys()
	done := true
	if strings.HasSuffix(key, c.failing) {
		c.deliveries[key]++
		done = c.deliveries[key] > c.failures
	}
	if done {
		c.done++
	}
	c.got = append(c.got, answer{
		"topic": message.Topic, "key": key, "tag": message.GetTags(), "body": hex.EncodeToString(message.Body),
		"id": message.MsgId, "queue": message.Queue.QueueId, "offset": message.QueueOffset,
		"attempts_before": message.ReconsumeTimes, "done": done,
	})
	return done
}

func (c *consumption) told(counted int) ([]answer, bool) {
	c.Lock()
	defer c.Unlock()
	return append([]answer{}, c.got...), c.done >= counted
}

var (
	producers = map[string]rocketmq.Producer{}
	running   = map[string]*consumption{}
	known     = map[string]func(call) (answer, error){"send": send, "consume": consume, "await": await, "stop": stop}
)

func producerOf(address string) (rocketmq.Producer, error) {
	if found, ok := producers[address]; ok {
		return found, nil
	}
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(primitive.NamesrvAddr{address}), producer.WithGroupName("go-producers"),
		producer.WithInstanceName("producers"), producer.WithRetry(2), producer.WithSendMsgTimeout(20*time.Second),
		producer.WithQueueSelector(producer.NewHashQueueSelector())) // any queue, if there is no sharding key
	if err == nil {
		err = made.Start()
	}
	producers[address] = made
	return made, err
}

func described(c call) []*primitive.Message {
	var made []*primitive.Message
	for number := 0; number < c.number("count", 1); number++ {
		key := fmt.Sprintf("%s-%d", c.Get("prefix"), number)
		body := []byte("body of " + key)
		if given, err := hex.DecodeString(c.Get("body")); err == nil && c.Has("body") {
			body = given
		}
		message := primitive.NewMessage(c.Get("topic"), body).WithKeys([]string{key})
		if c.Has("tag") {
			message.WithTag(c.Get("tag"))
		}
		if c.Get("how") == "ordered" {
			message.WithShardingKey(strconv.Itoa(number % c.number("shards", 1)))
		}
		if level := c.number("property.DELAY", 0); level > 0 {
			message.WithDelayTimeLevel(level)
		}
		made = append(made, message)
	}
	return made
}

func sent(message *primitive.Message, result *primitive.SendResult) answer {
	status := "NOT_OK"
	if result.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return answer{
		"key": message.GetKeys(), "body": hex.EncodeToString(message.Body), "status": status, "id": result.MsgID,
		"offset_id": result.OffsetMsgID, "queue": result.MessageQueue.QueueId, "offset": result.QueueOffset,
	}
}

func send(c call) (answer, error) {
	client, err := producerOf(c.Get("address"))
	if err != nil {
		return nil, err
	}
	messages, told, ctx := described(c), []answer{}, context.Background()
	switch c.text("how", "sync") {
	case "batch":
		result, err := client.SendSync(ctx, messages...)
		if err != nil {
			return nil, err
		}
		whole := sent(messages[0], result)
		return answer{"status": whole["status"], "id": result.MsgID}, nil
	case "oneway":
		for _, message := range messages {
			if err := client.SendOneWay(ctx, message); err != nil {
				return nil, err
			}
		}
	case "async":
		var waiting sync.WaitGroup
		var lock sync.Mutex
		var failed error
		for _, message := range messages {
			waiting.Add(1)
			err := client.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
				lock.Lock()
				defer lock.Unlock()
				defer waiting.Done()
				if err != nil {
					failed = err
				} else {
					told = append(told, sent(message, result))
				}
			}, message)
			if err != nil {
				return nil, err
			}
		}
		waiting.Wait()
		if failed != nil {
			return nil, failed
		}
	default:
		for _, message := range messages {
			result, err := client.SendSync(ctx, message)
			if err != nil {
				return nil, err
			}
			told = append(told, sent(message, result))
		}
	}
	return answer{"messages": told}, nil
}

func consume(c call) (answer, error) {
	options := []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{c.Get("address")}), consumer.WithGroupName(c.Get("group")),
		consumer.WithInstance(c.Get("id")), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithMaxReconsumeTimes(int32(c.number("max_attempts", -1))),
		consumer.WithConsumerOrder(c.Get("kind") == "orderly"),
		consumer.WithSuspendCurrentQueueTimeMillis(50 * time.Millisecond),
	}
	if c.Get("kind") == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	state := &consumption{
		consumer: made, deliveries: map[string]int{}, failures: c.number("fail", 0), failing: c.Get("failing"),
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.text("tags", "*")}
	err = made.Subscribe(c.Get("topic"), selector,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = c.number("level", 0)
			}
			for _, message := range messages {
				if !state.takes(message) {
					if c.Get("kind") == "orderly" {
						return consumer.SuspendCurrentQueueAMoment, nil
					}
					return consumer.ConsumeRetryLater, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err == nil {
		err = made.Start()
	}
	running[c.Get("id")] = state
	return answer{}, err
}

func await(c call) (answer, error) {
	deadline := time.Now().Add(time.Duration(c.number("limit_ms", 30000)) * time.Millisecond)
	for {
		got, done := running[c.Get("id")].told(c.number("count", 1))
		if done || time.Now().After(deadline) {
			return answer{"messages": got}, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stop(c call) (answer, error) {
	err := running[c.Get("id")].consumer.Shutdown()
	delete(running, c.Get("id"))
	return answer{}, err
}

func run(line string) answer {
	name, arguments, _ := strings.Cut(line, "?")
	values, err := url.ParseQuery(arguments)
	command, ok := known[name]
	if err != nil || !ok {
		return answer{"error": fmt.Sprintf("no such command: %s", line)}
	}
	result, err := command(call{values})
	if err != nil {
		return answer{"error": err.Error()}
	}
	return result
}

func main() {
	rlog.SetLogLevel("warn")
	answers := os.Stdout
	os.Stdout = os.Stderr // libraries print as they like
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		text, err := json.Marshal(run(lines.Text()))
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(answers, string(text))
	}
}
