package main

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// How push consumers get messages, and get them again.
var delivery = map[string]func(*run) outcome{
	"push": push, "retry": retry, "dead_letters": deadLetters, "orderly": orderly, "orderly_suspended": orderlySuspended,
	"tags": tags, "flow_control": flowControl,
}

const (
	messageCount = 40
	slowCount    = 60
	cached       = 4
	slowTime     = 10 * time.Millisecond
)

// push: messages that are there when the consumer starts, and some that wake its waiting pulls.
func push(r *run) outcome {
	r.send(-1, numbers(0, messageCount/2)...)
	reader := r.member("").started(r)
	reader.receive(messageCount / 2)
	r.send(-1, numbers(messageCount/2, messageCount)...)
	return outcome{"all_once": isRange(reader.receive(messageCount), messageCount)}
}

func (r *run) tagged(value string) *primitive.Message {
	message := r.message(value).WithTag("tag").WithKeys([]string{"key"})
	message.WithProperty("plain", "1")
	return message
}

// retry: a failure is a refusal in this client, so it is refused, too.
func retry(r *run) outcome {
	reader := r.member("").reacting(func(message *primitive.MessageExt) bool {
		switch string(message.Body) {
		case "refused":
			return message.ReconsumeTimes == 2
		case "thrown":
			return message.ReconsumeTimes == 1
		}
		return true
	}).started(r)
	sender := r.producer()
	for _, value := range []string{"accepted", "refused", "thrown"} {
		must(sender.SendSync(context.Background(), r.tagged(value)))
	}
	messages, topics, ids := reader.receive(6), true, map[string]bool{}
	found := outcome{"tries": reader.tries()}
	var retryTopics []bool
	var tags, keys, properties []string
	for _, message := range messages {
		topics = topics && message.Topic == r.topic
		if message.text() == "refused" {
			ids[message.MsgId] = true
			retryTopics = append(retryTopics, message.GetProperty("RETRY_TOPIC") == r.topic)
			tags, keys = append(tags, message.GetTags()), append(keys, message.GetKeys())
			properties = append(properties, message.GetProperty("plain"))
		}
	}
	found["topics"], found["ids"], found["retry_topics"] = topics, len(ids), retryTopics
	found["tags"], found["keys"], found["properties"] = tags, keys, properties
	return found
}

func deadLetters(r *run) outcome {
	reader := r.member("", consumer.WithMaxReconsumeTimes(1)).reacting(func(message *primitive.MessageExt) bool {
		return string(message.Body) == "accepted"
	}).started(r)
	sender := r.producer()
	for _, value := range []string{"accepted", "refused"} {
		must(sender.SendSync(context.Background(), r.tagged(value)))
	}
	dead := r.read("%DLQ%"+r.group, 1)
	reader.receive(3)
	return outcome{
		"tries": reader.tries(), "dead": texts(dead), "tags": dead[0].GetTags(), "keys": dead[0].GetKeys(),
		"retry_topic": dead[0].GetProperty("RETRY_TOPIC") == r.topic,
	}
}

func (r *run) orderly(suffix string) *member {
	return r.member(suffix, consumer.WithConsumerOrder(true), consumer.WithSuspendCurrentQueueTimeMillis(suspendTime))
}

func orderly(r *run) outcome {
	r.send(-1, numbers(0, messageCount)...)
	messages := r.orderly("").started(r).receive(messageCount)
	return outcome{"all_once": isRange(messages, messageCount), "in_order": inOrder(messages)}
}

// orderlySuspended: a refused message comes again, before those behind it.
func orderlySuspended(r *run) outcome {
	r.send(0, numbers(0, 5)...)
	refusals := 0
	reader := r.orderly("").reacting(func(message *primitive.MessageExt) bool {
		if string(message.Body) == "2" {
			refusals++
		}
		return string(message.Body) != "2" || refusals > 2
	})
	check(reader.start(r, "*", consumer.SuspendCurrentQueueAMoment))
	return outcome{"received": texts(reader.receive(7)), "tries": reader.tries()["2"]}
}

func tags(r *run) outcome {
	sender := r.producer()
	for _, tag := range []string{"a", "b", "c", "a"} {
		must(sender.SendSync(context.Background(), r.message(tag).WithTag(tag)))
	}
	must(sender.SendSync(context.Background(), r.message("none")))
	found := outcome{}
	for i, each := range []struct {
		tags  string
		count int
	}{{"a || b", 3}, {"c", 1}, {"*", 5}} {
		reader := r.member("_" + numbers(i, i+1)[0])
		check(reader.start(r, each.tags, consumer.ConsumeRetryLater))
		found[each.tags] = sorted(reader.receive(each.count))
	}
	return found
}

// flowControl: the consumer stops pulling while it has as many messages as it may keep.
func flowControl(r *run) outcome {
	r.send(0, numbers(0, slowCount)...)
	reader := r.member("", consumer.WithPullThresholdForQueue(cached), consumer.WithPullBatchSize(cached), consumer.WithConsumeGoroutineNums(1))
	messages := reader.reacting(func(*primitive.MessageExt) bool {
		time.Sleep(slowTime)
		return true
	}).started(r).receive(slowCount)
	return outcome{"all_once": isRange(messages, slowCount), "in_order": inOrder(messages)}
}
