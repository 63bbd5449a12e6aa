package main

import (
	"context"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Consumers that ask for messages.
var pulling = map[string]func(*run) outcome{"lite_subscribe": pollSubscribed, "pull": pull}

const polled = 12

func (r *run) pullConsumer(suffix, tags string) rocketmq.PullConsumer {
	opened := must(rocketmq.NewPullConsumer(r.consumerOptions(r.group + suffix)...))
	check(opened.Subscribe(r.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}))
	check(opened.Start())
	return opened
}

// subscribed polls so many messages as a member of the group, and acknowledges them.
func (r *run) subscribed(count int) []*received {
	messages, member := []*received{}, r.pullConsumer("", "*")
	poll := func() bool {
		request, err := member.Poll(context.Background(), quietTime)
		if consumer.IsNoNewMsgError(err) {
			return false
		}
		for _, message := range must(request, err).GetMsgList() {
			messages = append(messages, &received{message, message.ReconsumeTimes})
		}
		member.ACK(context.Background(), request, consumer.ConsumeSuccess)
		return true
	}
	until("polled messages", func() bool {
		poll()
		return len(messages) >= count
	})
	for poll() {
		continue
	}
	check(member.PersistOffset(context.Background(), r.topic))
	check(member.Shutdown())
	return messages
}

func pollSubscribed(r *run) outcome {
	r.send(-1, numbers(0, polled)...)
	first := r.subscribed(polled)
	r.send(-1, "a", "b", "c", "d")
	return outcome{"all_once": isRange(first, polled), "again": sorted(r.subscribed(4))}
}

// queue returns a queue of the topic by its id.
func (r *run) queue(id int) *primitive.MessageQueue {
	opened := must(admin.NewAdmin(admin.WithResolver(r.resolver())))
	for _, queue := range must(opened.FetchPublishMessageQueues(context.Background(), r.topic)) {
		if queue.QueueId == id {
			return queue
		}
	}
	panic("there is no such queue")
}

var statusNames = map[primitive.PullStatus]string{
	primitive.PullFound: "FOUND", primitive.PullNoNewMsg: "NO_NEW_MSG", primitive.PullNoMsgMatched: "NO_MATCHED_MSG",
	primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
}

func pull(r *run) outcome {
	sender, queue := r.producer(toQueue), r.queue(1)
	for i, value := range numbers(0, 5) {
		message := r.message(value).WithTag([]string{"even", "odd"}[i%2])
		message.Queue = queue
		must(sender.SendSync(context.Background(), message))
	}
	all := r.pullConsumer("", "*")
	pulled := func(from rocketmq.PullConsumer, queue *primitive.MessageQueue, offset int64, count int) []any {
		result := must(from.PullFrom(context.Background(), queue, offset, count))
		values := []string{}
		for _, message := range result.GetMessageExts() {
			values = append(values, string(message.Body))
		}
		return []any{statusNames[result.Status], values, result.NextBeginOffset}
	}
	until("all messages", func() bool {
		return must(all.PullFrom(context.Background(), queue, 0, 32)).NextBeginOffset == 5
	})
	return outcome{
		"from_2": pulled(all, queue, 2, 2), "odd": pulled(r.pullConsumer("_odd", "odd"), queue, 0, 32),
		"unmatched": pulled(r.pullConsumer("_none", "none"), queue, 0, 32), "at_end": pulled(all, queue, 5, 32),
		"beyond": pulled(all, queue, 9, 32), "empty_queue": pulled(all, r.queue(2), 0, 32),
	}
}
