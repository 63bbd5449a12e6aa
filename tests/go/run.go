// The features of Pulsar as programs of the official Go client, one process per feature: see tests/sdk/features.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	receiveTime = 30 * time.Second
	// quietTime: if no message arrives in this time, no further one is expected.
	quietTime = 1500 * time.Millisecond
	pollTime  = 100 * time.Millisecond
	maxPolls  = 600
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

// run has the options of the program, a client, and short forms of its calls. Topics are the run's own, by a suffix.
type run struct {
	url, base, listener, keys string
	client                    pulsar.Client
}

func (r *run) newClient() pulsar.Client {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return must(pulsar.NewClient(pulsar.ClientOptions{
		URL: r.url, ListenerName: r.listener, Logger: log.NewLoggerWithSlog(logger),
	}))
}

func (r *run) topic(suffix string) string { return r.base + suffix }

// producer opens one without batches. The suffix of the topic stands in the options, which may be empty.
func (r *run) producer(options pulsar.ProducerOptions) pulsar.Producer {
	options.Topic = r.topic(options.Topic)
	options.DisableBatching = options.BatchingMaxMessages == 0
	return must(r.client.CreateProducer(options))
}

// send sends texts, each in an entry of its own unless the options say otherwise, and returns their ids.
func (r *run) send(options pulsar.ProducerOptions, values ...string) []pulsar.MessageID {
	producer := r.producer(options)
	defer producer.Close()
	ids := make([]pulsar.MessageID, len(values))
	for i, value := range values {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(value)},
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				check(err)
				ids[i] = id
			})
	}
	check(producer.Flush())
	return ids
}

func (r *run) sendNumbers(from, to int) []pulsar.MessageID {
	return r.send(pulsar.ProducerOptions{}, numbers(from, to)...)
}

// batch returns options of a producer that sends so many messages as one batch.
func batch(suffix string, count int) pulsar.ProducerOptions {
	return pulsar.ProducerOptions{Topic: suffix, BatchingMaxMessages: uint(count), BatchingMaxPublishDelay: 10 * time.Second}
}

// consumer subscribes from the earliest message. The suffix of the topic stands in the options, which may be empty.
func (r *run) consumer(options pulsar.ConsumerOptions) pulsar.Consumer {
	return must(r.subscribe(options))
}

func (r *run) subscribe(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.TopicsPattern == "" {
		options.Topic = r.topic(options.Topic)
	}
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
		options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	}
	return r.client.Subscribe(options)
}

// ask lets the harness do something, and waits until it has done it.
func ask(action string) {
	print(map[string]any{"do": action})
	must(stdin.ReadString('\n'))
}

var stdin = bufio.NewReader(os.Stdin)

func print(line map[string]any) { fmt.Println(string(must(json.Marshal(line)))) }

// poll returns nil if no message arrives in time.
func poll(consumer pulsar.Consumer, limit time.Duration) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return must(message, err)
}

func receive(consumer pulsar.Consumer, count int) []pulsar.Message {
	var messages []pulsar.Message
	for range count {
		message := poll(consumer, receiveTime)
		if message == nil {
			panic(fmt.Sprintf("received only %v of %d", texts(messages), count))
		}
		messages = append(messages, message)
	}
	return messages
}

func acknowledge(consumer pulsar.Consumer, messages []pulsar.Message) {
	for _, message := range messages {
		check(consumer.Ack(message))
	}
}

func receiveAndAcknowledge(consumer pulsar.Consumer, count int) []pulsar.Message {
	messages := receive(consumer, count)
	acknowledge(consumer, messages)
	return messages
}

// rest receives until nothing more arrives, and acknowledges it.
func rest(consumer pulsar.Consumer) []pulsar.Message {
	var messages []pulsar.Message
	for message := poll(consumer, quietTime); message != nil; message = poll(consumer, quietTime) {
		messages = append(messages, message)
	}
	acknowledge(consumer, messages)
	return messages
}

// gather receives and acknowledges count messages by all consumers together, and returns the numbers that each received.
func gather(consumers []pulsar.Consumer, count int) [][]int {
	received, total := make([][]int, len(consumers)), 0
	for polls := 0; polls < maxPolls && total < count; polls++ {
		for i, consumer := range consumers {
			if message := poll(consumer, pollTime); message != nil {
				received[i] = append(received[i], number(message))
				check(consumer.Ack(message))
				total++
			}
		}
	}
	for i, consumer := range consumers {
		for _, message := range rest(consumer) {
			received[i] = append(received[i], number(message))
		}
	}
	return received
}

func text(message pulsar.Message) string { return string(message.Payload()) }

func number(message pulsar.Message) int { return must(strconv.Atoi(text(message))) }

func texts(messages []pulsar.Message) []string {
	values := []string{}
	for _, message := range messages {
		values = append(values, text(message))
	}
	return values
}

// position is a message id as a value: two ids of this client cannot be compared.
type position struct {
	ledger, entry    int64
	batch, partition int32
}

func positionOf(id pulsar.MessageID) position {
	return position{id.LedgerID(), id.EntryID(), id.BatchIdx(), id.PartitionIdx()}
}

func positionsOf(ids []pulsar.MessageID) []position {
	positions := []position{}
	for _, id := range ids {
		positions = append(positions, positionOf(id))
	}
	return positions
}

func idsOf(messages []pulsar.Message) []pulsar.MessageID {
	var ids []pulsar.MessageID
	for _, message := range messages {
		ids = append(ids, message.ID())
	}
	return ids
}

func before(a, b position) bool {
	if a.ledger != b.ledger {
		return a.ledger < b.ledger
	}
	if a.entry != b.entry {
		return a.entry < b.entry
	}
	return a.batch < b.batch
}

func numbers(from, to int) []string {
	var values []string
	for i := from; i < to; i++ {
		values = append(values, strconv.Itoa(i))
	}
	return values
}

// isRange says if the numbers are those from 0, each once.
func isRange(values []int, count int) bool {
	sorted := append([]int{}, values...)
	sort.Ints(sorted)
	for i, value := range sorted {
		if i != value {
			return false
		}
	}
	return len(sorted) == count
}

func main() {
	r, feature := &run{}, ""
	flag.StringVar(&r.url, "url", "", "pulsar://host:port")
	flag.StringVar(&feature, "feature", "", "its name")
	flag.StringVar(&r.base, "topic", "", "of which the feature derives the names of its topics")
	flag.StringVar(&r.listener, "listener", "", "advertised listener whose addresses are used")
	flag.StringVar(&r.keys, "keys", "", "folder with public.pem and private.pem")
	flag.Parse()
	for _, features := range []map[string]func(*run) outcome{sending, sharing, redelivery, positions} {
		if program := features[feature]; program != nil {
			r.client = r.newClient()
			print(map[string]any{"outcome": program(r)})
			r.client.Close()
			return
		}
	}
	panic("there is no feature " + feature)
}
