package main

import (
	"bytes"
	"context"
	"math/rand"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// What producers do, and what consumers read of it.
var sending = map[string]func(*run) outcome{
	"send": send, "batch": batch, "selector": selector, "compressed": compressed, "large": large, "delay_level": delayLevel,
	"transaction": transaction, "request_reply": requestReply, "trace": trace,
}

// systemProperties are those that clients and brokers set themselves.
var systemProperties = []string{
	"UNIQ_KEY", "WAIT", "TAGS", "KEYS", "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME",
}

const (
	keyCount   = 5
	rounds     = 10
	largeBytes = 4_000_000
	replyTime  = 60 * time.Second
)

func (r *run) described(value string) *primitive.Message {
	message := r.message(value).WithTag("tag").WithKeys([]string{"key1", "key2"})
	message.Flag = 7
	message.WithProperty("plain", "1")
	message.WithProperty("text", "ä€ = 2")
	return message
}

func describe(messages []*received) []outcome {
	found := []outcome{}
	for _, message := range messages {
		properties := message.GetProperties()
		for _, name := range systemProperties {
			delete(properties, name)
		}
		found = append(found, outcome{
			"value": message.text(), "tags": message.GetTags(), "keys": message.GetKeys(),
			"properties": properties, "tries": message.tries,
		})
	}
	return found
}

func flags(messages []*received) []int32 {
	found := []int32{}
	for _, message := range messages {
		found = append(found, message.Flag)
	}
	return found
}

func send(r *run) outcome {
	sender, sent := r.producer(), make(chan *primitive.SendResult, 1)
	results := []*primitive.SendResult{must(sender.SendSync(context.Background(), r.described("sync")))}
	check(sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
		check(err)
		sent <- result
	}, r.described("async")))
	results = append([]*primitive.SendResult{<-sent}, results...)
	check(sender.SendOneWay(context.Background(), r.described("oneway")))
	read := r.read(r.topic, 3)
	sort.Slice(read, func(i, j int) bool { return read[i].text() < read[j].text() })
	same := true
	for i, result := range results {
		message := read[2*i]
		same = same && result.MsgID == message.MsgId && result.QueueOffset == message.QueueOffset &&
			result.OffsetMsgID == message.OffsetMsgId && result.MessageQueue.QueueId == message.Queue.QueueId
	}
	return outcome{"messages": describe(read), "flags": flags(read), "results_are_of_messages": same}
}

func batch(r *run) outcome {
	result := must(r.producer().SendSync(context.Background(), r.described("0"), r.described("1"), r.described("2")))
	read := r.read(r.topic, 3)
	sort.Slice(read, func(i, j int) bool { return read[i].QueueOffset < read[j].QueueOffset })
	offsets, queues := []int64{}, map[int]bool{}
	for _, message := range read {
		offsets = append(offsets, message.QueueOffset-result.QueueOffset)
		queues[message.Queue.QueueId] = true
	}
	return outcome{"messages": describe(read), "flags": flags(read), "offsets": offsets, "queues": len(queues)}
}

func selector(r *run) outcome {
	queues := must(must(admin.NewAdmin(admin.WithResolver(r.resolver()))).FetchPublishMessageQueues(context.Background(), r.topic))
	sender := r.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for i := range keyCount * rounds {
		must(sender.SendSync(context.Background(), r.message(i).WithShardingKey(strconv.Itoa(i%keyCount))))
	}
	read := r.read(r.topic, keyCount*rounds)
	sort.Slice(read, func(i, j int) bool { return read[i].QueueOffset < read[j].QueueOffset }) // listeners run concurrently
	queueOf, oneQueue := map[int]int{}, true
	for _, message := range read {
		key := message.number() % keyCount
		if queue, known := queueOf[key]; known && queue != message.Queue.QueueId {
			oneQueue = false
		}
		queueOf[key] = message.Queue.QueueId
	}
	return outcome{
		"queues": len(queues), "all_once": isRange(read, keyCount*rounds), "in_order": inOrder(read), "one_queue_per_key": oneQueue,
	}
}

// compressed: the client compresses bodies from 4 KiB on.
func compressed(r *run) outcome {
	sender, sent := r.producer(), []string{}
	for _, size := range []int{4095, 4096, 20_000} {
		sent = append(sent, strings.Repeat("x", size))
		must(sender.SendSync(context.Background(), r.message(sent[len(sent)-1])))
	}
	read, sizes := sorted(r.read(r.topic, len(sent))), []int{}
	for _, value := range read {
		sizes = append(sizes, len(value))
	}
	return outcome{"sizes": sizes, "same": slices.Equal(read, sent)}
}

func large(r *run) outcome {
	body := make([]byte, largeBytes)
	must(rand.New(rand.NewSource(1)).Read(body))
	must(r.producer().SendSync(context.Background(), primitive.NewMessage(r.topic, body)))
	read := r.read(r.topic, 1)[0]
	return outcome{"size": len(read.Body), "same": bytes.Equal(read.Body, body)}
}

func delayLevel(r *run) outcome {
	var arrival time.Time
	waiting := r.member("").reacting(func(*primitive.MessageExt) bool {
		arrival = time.Now()
		return true
	}).started(r)
	sender, earliest := r.producer(), time.Now().Add(5*time.Second)
	must(sender.SendSync(context.Background(), r.described("delayed").WithDelayTimeLevel(2)))
	must(sender.SendSync(context.Background(), r.message("now")))
	messages := waiting.receive(2)
	return outcome{"received": texts(messages), "early": arrival.Before(earliest), "tags": messages[1].GetTags()}
}

// transactions ends transactions as the texts of their messages say, and answers checks.
type transactions struct {
	mutex   sync.Mutex
	checked map[string]bool
}

func (*transactions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "committed":
		return primitive.CommitMessageState
	case "rolled back":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (t *transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.checked[string(message.Body)] = true
	if string(message.Body) == "checked" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func (t *transactions) checks() []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	values := []string{}
	for value := range t.checked {
		values = append(values, value)
	}
	sort.Strings(values)
	return values
}

func transaction(r *run) outcome {
	listener := &transactions{checked: map[string]bool{}}
	sender := must(rocketmq.NewTransactionProducer(listener, r.producerOptions()...))
	check(sender.Start())
	for _, value := range []string{"committed", "rolled back"} {
		must(sender.SendMessageInTransaction(context.Background(), r.described(value)))
	}
	first := texts(r.read(r.topic, 1))
	for _, value := range []string{"checked", "checked and refused"} {
		must(sender.SendMessageInTransaction(context.Background(), r.described(value)))
	}
	until("checks", func() bool { return len(listener.checks()) == 2 })
	messages, tags := r.read(r.topic, 2), []string{}
	for _, message := range messages {
		tags = append(tags, message.GetTags())
	}
	return outcome{"first": first, "received": sorted(messages), "checked": listener.checks(), "tags": tags}
}

// requestReply: the client registers a requester at the broker with its heartbeats, and only then it can be replied to.
func requestReply(r *run) outcome {
	requester, replier := r.producer(), r.producer()
	must(requester.SendSync(context.Background(), r.message("known")))
	r.member("").reacting(func(request *primitive.MessageExt) bool {
		if string(request.Body) == "known" {
			return true
		}
		reply := must(consumer.CreateReplyMessage(request, nil)) // which would parse a body as properties
		reply.Body = []byte("reply to " + string(request.Body))
		must(replier.SendSync(context.Background(), reply))
		return true
	}).started(r)
	var reply *primitive.Message
	until("a reply", func() bool {
		var err error
		reply, err = requester.Request(context.Background(), replyTime/10, r.message("request"))
		return err == nil
	})
	return outcome{"reply": string(reply.Body)}
}

// trace: clients describe what they do with a message in messages of another topic, in records that begin with their kind.
func trace(r *run) outcome {
	traces := &primitive.TraceConfig{TraceTopic: r.topic + "_trace", GroupName: r.group + "_tracer", Access: primitive.Local, Resolver: r.resolver()}
	reader := r.member("", consumer.WithTrace(traces)).started(r)
	id := must(r.producer(producer.WithTrace(traces)).SendSync(context.Background(), r.described("traced"))).MsgID
	reader.receive(1)
	kinds := map[string]bool{}
	until("traces", func() bool {
		for _, message := range r.read(r.topic+"_trace", 1) {
			for _, record := range strings.Split(message.text(), "\x02") {
				if strings.Contains(record, id) {
					kinds[strings.Split(record, "\x01")[0]] = true
				}
			}
		}
		return len(kinds) == 3
	})
	names := []string{}
	for name := range kinds {
		names = append(names, name)
	}
	sort.Strings(names)
	return outcome{"kinds": names}
}
