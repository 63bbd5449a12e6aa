// The features of RocketMQ as programs of the official Go client, one process per feature: see tests/sdk/rocketmq_features.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	// patience is longer than the time between two heartbeats, before which a broker may know no subscription.
	patience = 80 * time.Second
	// quietTime: if no message arrives in this time, no further one is expected.
	quietTime   = 1500 * time.Millisecond
	pollTime    = 50 * time.Millisecond
	suspendTime = 200 * time.Millisecond
	sendTime    = 15 * time.Second
	queueCount  = 4
	// shortestDelay is 1 s.
	shortestDelay = 1
)

type outcome map[string]any

// must ends the program with an error. A feature is too short to do anything else about one.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// run has the options of the program, and short forms of the client's calls. Topics and groups are the run's own, by a suffix.
type run struct {
	nameServers, topic, group string
	instances                 int
}

func (r *run) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{r.nameServers})
}

// instance is the name of a client with connections and a client id of its own.
func (r *run) instance() string {
	r.instances++
	return fmt.Sprintf("%s_%d", r.group, r.instances)
}

func (r *run) producerOptions(more ...producer.Option) []producer.Option {
	return append([]producer.Option{
		producer.WithGroupName(r.group + "_producer"), producer.WithNsResolver(r.resolver()), producer.WithInstanceName(r.instance()),
		producer.WithSendMsgTimeout(sendTime),
	}, more...)
}

func (r *run) producer(more ...producer.Option) rocketmq.Producer {
	started := must(rocketmq.NewProducer(r.producerOptions(more...)...))
	check(started.Start())
	return started
}

func (r *run) message(value any) *primitive.Message {
	return primitive.NewMessage(r.topic, []byte(fmt.Sprint(value)))
}

// toQueue lets the producer send messages to a queue.
var toQueue = producer.WithQueueSelector(producer.NewManualQueueSelector())

// send sends texts to one queue, or to all in turn if it is negative.
func (r *run) send(queue int, values ...string) {
	sender := r.producer()
	if queue >= 0 {
		sender = r.producer(toQueue)
	}
	for _, value := range values {
		message := r.message(value)
		if queue >= 0 {
			message.Queue = r.queue(queue)
		}
		must(sender.SendSync(context.Background(), message))
	}
	check(sender.Shutdown())
}

func (r *run) consumerOptions(group string, more ...consumer.Option) []consumer.Option {
	return append([]consumer.Option{
		consumer.WithGroupName(group), consumer.WithNsResolver(r.resolver()), consumer.WithInstance(r.instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
}

// received is a message as it was when it arrived: an orderly consumer changes it when it gives it again.
type received struct {
	*primitive.MessageExt
	tries int32
}

func (m *received) text() string { return string(m.Body) }

func (m *received) number() int { return must(strconv.Atoi(m.text())) }

// member is a push consumer that keeps its messages, and the number of queues that it has by the last rebalance.
type member struct {
	consumer rocketmq.PushConsumer
	accepts  func(*primitive.MessageExt) bool
	mutex    sync.Mutex
	messages []*received
	queues   map[int]bool
}

func (r *run) member(suffix string, more ...consumer.Option) *member {
	m := &member{accepts: func(*primitive.MessageExt) bool { return true }}
	options := r.consumerOptions(r.group+suffix, append([]consumer.Option{consumer.WithStrategy(m.allocate(r.topic))}, more...)...)
	m.consumer = must(rocketmq.NewPushConsumer(options...))
	return m
}

// allocate is the strategy that is the default, and notes what it assigns.
func (m *member) allocate(topic string) consumer.AllocateStrategy {
	return func(group, id string, all []*primitive.MessageQueue, ids []string) []*primitive.MessageQueue {
		mine := consumer.AllocateByAveragely(group, id, all, ids)
		if len(all) > 0 && all[0].Topic == topic {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			m.queues = map[int]bool{}
			for _, queue := range mine {
				m.queues[queue.QueueId] = true
			}
		}
		return mine
	}
}

func (m *member) owned() map[int]bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.queues
}

func (m *member) reacting(accepts func(*primitive.MessageExt) bool) *member {
	m.accepts = accepts
	return m
}

func (m *member) got() []*received {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return append([]*received{}, m.messages...)
}

func (m *member) listen(refused consumer.ConsumeResult) func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(ctx context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			concurrently.DelayLevelWhenNextConsume = shortestDelay
		}
		for _, message := range batch {
			m.mutex.Lock()
			m.messages = append(m.messages, &received{message, message.ReconsumeTimes})
			m.mutex.Unlock()
			if !m.accepts(message) {
				return refused, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
}

func (m *member) start(r *run, tags string, refused consumer.ConsumeResult) error {
	return m.startWith(r.topic, tags, refused)
}

func (m *member) startWith(topic, tags string, refused consumer.ConsumeResult) error {
	check(m.consumer.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, m.listen(refused)))
	return m.consumer.Start()
}

func (m *member) started(r *run) *member {
	check(m.start(r, "*", consumer.ConsumeRetryLater))
	return m
}

// receive waits for so many messages, and then until no further one is expected.
func (m *member) receive(count int) []*received {
	until(fmt.Sprintf("%d messages", count), func() bool { return len(m.got()) >= count })
	time.Sleep(quietTime)
	return m.got()
}

func (m *member) awaitQueues(count int) {
	until(fmt.Sprintf("%d queues", count), func() bool { return len(m.owned()) == count })
}

// tries are the counts of earlier deliveries with which each message came, by its text.
func (m *member) tries() map[string][]int32 {
	found := map[string][]int32{}
	for _, message := range m.got() {
		found[message.text()] = append(found[message.text()], message.tries)
	}
	return found
}

// read reads so many messages from the beginning of a topic, which may not exist yet, with a group of its own.
func (r *run) read(topic string, count int) []*received {
	var reader *member
	until("route of "+topic, func() bool {
		reader = r.member(fmt.Sprintf("_reader_%d", r.instances))
		return reader.startWith(topic, "*", consumer.ConsumeRetryLater) == nil
	})
	messages := reader.receive(count)
	check(reader.consumer.Shutdown())
	return messages
}

func until(what string, condition func() bool) {
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(pollTime) {
		if time.Now().After(deadline) {
			panic("waited in vain for " + what)
		}
	}
}

func texts(messages []*received) []string {
	values := []string{}
	for _, message := range messages {
		values = append(values, message.text())
	}
	return values
}

func sorted(messages []*received) []string {
	values := texts(messages)
	sort.Strings(values)
	return values
}

func numbers(from, to int) []string {
	var values []string
	for i := from; i < to; i++ {
		values = append(values, strconv.Itoa(i))
	}
	return values
}

// isRange says if the numbers are those from 0, each once.
func isRange(messages []*received, count int) bool {
	seen := map[int]bool{}
	for _, message := range messages {
		seen[message.number()] = message.number() < count
	}
	return len(seen) == count && len(messages) == count
}

// inOrder says if the numbers in each queue ascend.
func inOrder(messages []*received) bool {
	last := map[int]int{}
	for _, message := range messages {
		if before, known := last[message.Queue.QueueId]; known && before >= message.number() {
			return false
		}
		last[message.Queue.QueueId] = message.number()
	}
	return true
}

func main() {
	r, feature, folder, deadline := &run{}, "", "", 0
	flag.StringVar(&r.nameServers, "name-servers", "", "host:port")
	flag.StringVar(&feature, "feature", "", "its name")
	flag.StringVar(&r.topic, "topic", "", "names of other topics are this and a suffix")
	flag.StringVar(&r.group, "group", "", "names of other groups are this and a suffix")
	flag.StringVar(&folder, "folder", "", "ignored: the client reads its folder from the environment")
	flag.IntVar(&deadline, "deadline", 100, "the program ends itself after so many seconds")
	flag.Parse()
	rlog.SetLogLevel("warn")
	time.AfterFunc(time.Duration(deadline)*time.Second, func() { panic("not done in time") })
	for _, features := range []map[string]func(*run) outcome{sending, delivery, groups, pulling} {
		if program := features[feature]; program != nil {
			fmt.Println(string(must(json.Marshal(map[string]any{"outcome": program(r)}))))
			os.Exit(0)
		}
	}
	panic("there is no feature " + feature)
}
