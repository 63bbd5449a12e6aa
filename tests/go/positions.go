package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Where reading begins: readers, seeks, subscriptions and their positions; patterns, partitions and lost connections.
var positions = map[string]func(*run) outcome{
	"reader": reader, "reader_in_batch": readerInBatch, "reader_seek": readerSeek, "seek_by_id": seekByID,
	"seek_in_batch": seekInBatch, "seek_by_time": seekByTime, "last_message_id": lastMessageID,
	"initial_position": initialPosition, "durable": durable, "unsubscribe": unsubscribe, "pattern": pattern,
	"pattern_new_topic": patternNewTopic, "partitioned": partitioned, "broken_connection": brokenConnection,
}

const (
	partitions = 3
	burst      = 5
	cuts       = 3
	// apart is the pause between messages that get different publish times, which count milliseconds.
	apart = 50 * time.Millisecond
)

func (r *run) reader(start pulsar.MessageID, inclusive bool) pulsar.Reader {
	options := pulsar.ReaderOptions{Topic: r.topic(""), StartMessageID: start, StartMessageIDInclusive: inclusive}
	return must(r.client.CreateReader(options))
}

func readOne(reader pulsar.Reader) string {
	ctx, cancel := context.WithTimeout(context.Background(), receiveTime)
	defer cancel()
	return text(must(reader.Next(ctx)))
}

func read(reader pulsar.Reader) []string {
	values := []string{}
	for reader.HasNext() {
		values = append(values, readOne(reader))
	}
	reader.Close()
	return values
}

func reader(r *run) outcome {
	sent := r.sendNumbers(0, 6)
	latest := r.reader(pulsar.LatestMessageID(), false)
	had := latest.HasNext()
	r.send(pulsar.ProducerOptions{}, "later")
	return outcome{
		"earliest": read(r.reader(pulsar.EarliestMessageID(), false)), "latest_had": had, "latest": []string{readOne(latest)},
		"after_id": read(r.reader(sent[3], false)), "from_id": read(r.reader(sent[3], true)),
	}
}

func readerInBatch(r *run) outcome {
	start := r.send(batch("", 6), numbers(0, 6)...)[3]
	return outcome{"after_id": read(r.reader(start, false)), "from_id": read(r.reader(start, true))}
}

func readerSeek(r *run) outcome {
	sent := r.sendNumbers(0, 6)
	reader, first := r.reader(pulsar.EarliestMessageID(), true), []string{}
	for range sent {
		first = append(first, readOne(reader))
	}
	check(reader.Seek(sent[2]))
	return outcome{"first": first, "after_seek": read(reader)}
}

// seekByID: this client refuses to seek to the earliest or latest id, which have no partition.
func seekByID(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{StartMessageIDInclusive: true})
	sent := r.sendNumbers(0, 6)
	receiveAndAcknowledge(consumer, 6)
	check(consumer.Seek(sent[2]))
	return outcome{"id": texts(rest(consumer))}
}

func seekInBatch(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{StartMessageIDInclusive: true})
	sent := r.send(batch("", 6), numbers(0, 6)...)
	receiveAndAcknowledge(consumer, 6)
	check(consumer.Seek(sent[2]))
	return outcome{"received": texts(rest(consumer))}
}

func seekByTime(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	for _, value := range numbers(0, 6) {
		r.send(pulsar.ProducerOptions{}, value)
		time.Sleep(apart)
	}
	check(consumer.SeekByTime(receiveAndAcknowledge(consumer, 6)[3].PublishTime()))
	return outcome{"received": texts(rest(consumer))}
}

func lastMessageID(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	isLast := func(sent []pulsar.MessageID) bool {
		return positionOf(sent[len(sent)-1]) == positionOf(must(consumer.GetLastMessageIDs())[0])
	}
	single := isLast(r.sendNumbers(0, 3))
	return outcome{"single": single, "batch": isLast(r.send(batch("", 3), numbers(0, 3)...))}
}

func initialPosition(r *run) outcome {
	r.sendNumbers(0, 3)
	earliest := r.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "earliest", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	latest := r.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "latest", SubscriptionInitialPosition: pulsar.SubscriptionPositionLatest,
	})
	r.sendNumbers(3, 5)
	return outcome{"earliest": texts(rest(earliest)), "latest": texts(rest(latest))}
}

func durable(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	r.sendNumbers(0, 6)
	received := receive(consumer, 6)
	acknowledge(consumer, received[:3])
	consumer.Close()
	r.client.Close()
	r.client = r.newClient()
	again := rest(r.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "s", SubscriptionInitialPosition: pulsar.SubscriptionPositionLatest,
	}))
	return outcome{"again": texts(again), "same_ids": slices.Equal(positionsOf(idsOf(again)), positionsOf(idsOf(received[3:])))}
}

func unsubscribe(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	r.sendNumbers(0, 3)
	receiveAndAcknowledge(consumer, 3)
	check(consumer.Unsubscribe())
	return outcome{"again": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}

func (r *run) matching() pulsar.Consumer {
	return r.consumer(pulsar.ConsumerOptions{TopicsPattern: r.topic("-.*"), AutoDiscoveryPeriod: time.Second})
}

func pattern(r *run) outcome {
	for _, suffix := range []string{"-a", "-b", "other"} {
		r.send(pulsar.ProducerOptions{Topic: suffix}, suffix)
	}
	received := texts(rest(r.matching()))
	sort.Strings(received)
	return outcome{"received": received}
}

func patternNewTopic(r *run) outcome {
	r.send(pulsar.ProducerOptions{Topic: "-a"}, "-a")
	consumer := r.matching()
	before := texts(receiveAndAcknowledge(consumer, 1))
	r.send(pulsar.ProducerOptions{Topic: "-b"}, "-b")
	return outcome{"before": before, "after": texts(receiveAndAcknowledge(consumer, 1))}
}

func partitioned(r *run) outcome {
	consumer, producer := r.consumer(pulsar.ConsumerOptions{}), r.producer(pulsar.ProducerOptions{})
	for i, value := range numbers(0, 24) {
		message := &pulsar.ProducerMessage{Payload: []byte(value)}
		if i >= 12 { // the others go round robin
			message.Key = fmt.Sprintf("k%d", i%4)
		}
		must(producer.Send(context.Background(), message))
	}
	all, byPartition, byKey := []int{}, map[int32][]int{}, map[string]map[int32]bool{}
	for _, message := range receiveAndAcknowledge(consumer, 24) {
		partition, value := message.ID().PartitionIdx(), number(message)
		all = append(all, value)
		byPartition[partition] = append(byPartition[partition], value)
		if message.Key() != "" {
			if byKey[message.Key()] == nil {
				byKey[message.Key()] = map[int32]bool{}
			}
			byKey[message.Key()][partition] = true
		}
	}
	consumer.Close()
	inOrder, onePartition := true, true
	for _, values := range byPartition {
		inOrder = inOrder && sort.IntsAreSorted(values)
	}
	for _, found := range byKey {
		onePartition = onePartition && len(found) == 1
	}
	return outcome{
		"partitions": len(must(r.client.TopicPartitions(r.topic("")))), "all_once": isRange(all, 24),
		"spread": len(byPartition) == partitions, "in_order": inOrder, "one_partition_per_key": onePartition,
		"left": texts(rest(r.consumer(pulsar.ConsumerOptions{}))),
	}
}

func brokenConnection(r *run) outcome {
	consumer, producer := r.consumer(pulsar.ConsumerOptions{}), r.producer(pulsar.ProducerOptions{})
	for first := 0; first < burst*cuts; first += burst {
		for _, value := range numbers(first, first+burst) {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(value)},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
		}
		ask("cut")
		check(producer.Flush())
	}
	seen := []string{}
	for len(seen) < burst*cuts {
		if value := texts(receiveAndAcknowledge(consumer, 1))[0]; !slices.Contains(seen, value) {
			seen = append(seen, value)
		}
	}
	rest(consumer)
	ask("cut")
	must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("after")}))
	after := []string{}
	for _, value := range texts(rest(consumer)) {
		if !slices.Contains(seen, value) && !slices.Contains(after, value) {
			after = append(after, value)
		}
	}
	consumer.Close()
	return outcome{"received": seen, "after": after, "left": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}
