package main

import (
	"context"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Acknowledgements, redelivery and delayed delivery.
var redelivery = map[string]func(*run) outcome{
	"ack_individual": ackIndividual, "ack_cumulative": ackCumulative, "ack_batch_index": ackBatchIndex,
	"ack_cumulative_in_batch": ackCumulativeInBatch, "negative_ack_in_batch": negativeAckInBatch,
	"ack_whole_batch": ackWholeBatch, "ack_receipts": ackReceipts, "negative_acks": negativeAcks,
	"dead_letters": deadLetters, "retry_letters": retryLetters, "delayed_shared": delayedShared,
	"delayed_exclusive": delayedExclusive, "delayed_ack": delayedAck,
}

const (
	nackDelay  = 100 * time.Millisecond
	retryDelay = 500 * time.Millisecond
	delay      = 3 * time.Second
	// redeliveries, after which a message is a dead letter.
	redeliveries = 2
)

// acknowledgeEven acknowledges the messages with even numbers and closes the consumer.
func acknowledgeEven(consumer pulsar.Consumer, count int) {
	for _, message := range receive(consumer, count) {
		if number(message)%2 == 0 {
			check(consumer.Ack(message))
		}
	}
	consumer.Close()
}

func ackIndividual(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	r.sendNumbers(0, 10)
	acknowledgeEven(consumer, 10)
	return outcome{"again": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}

func ackCumulative(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	r.sendNumbers(0, 10)
	check(consumer.AckCumulative(receive(consumer, 5)[4]))
	consumer.Close()
	return outcome{"again": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}

func ackCumulativeInBatch(r *run) outcome {
	options := pulsar.ConsumerOptions{EnableBatchIndexAcknowledgment: true}
	consumer := r.consumer(options)
	r.send(batch("", 10), numbers(0, 10)...)
	check(consumer.AckCumulative(receive(consumer, 5)[4]))
	consumer.Close()
	return outcome{"again": texts(rest(r.consumer(options)))}
}

func ackBatchIndex(r *run) outcome {
	again := outcome{}
	for name, kind := range map[string]pulsar.SubscriptionType{"Exclusive": pulsar.Exclusive, "Shared": pulsar.Shared} {
		options := pulsar.ConsumerOptions{Topic: name, Type: kind, EnableBatchIndexAcknowledgment: true}
		consumer := r.consumer(options)
		r.send(batch(name, 10), numbers(0, 10)...)
		acknowledgeEven(consumer, 10)
		again[name] = texts(rest(r.consumer(options)))
	}
	return again
}

// ackWholeBatch: without batch index acknowledgement, a batch comes again as a whole until all its messages are acknowledged.
func ackWholeBatch(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	r.send(batch("", 5), numbers(0, 5)...)
	acknowledge(consumer, receive(consumer, 5)[:3])
	consumer.Close()
	consumer = r.consumer(pulsar.ConsumerOptions{})
	again := texts(rest(consumer))
	consumer.Close()
	return outcome{"again": again, "left": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}

func ackReceipts(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{AckWithResponse: true})
	r.sendNumbers(0, 5)
	confirmed := receive(consumer, 5)[:3]
	acknowledge(consumer, confirmed)
	r.client.Close()
	r.client = r.newClient()
	return outcome{"confirmed": len(confirmed), "again": texts(rest(r.consumer(pulsar.ConsumerOptions{})))}
}

func negativeAcks(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, NackRedeliveryDelay: nackDelay})
	r.sendNumbers(0, 4)
	counts := map[string][]uint32{}
	for range 4 + 2 + 2 {
		message := receive(consumer, 1)[0]
		counts[text(message)] = append(counts[text(message)], message.RedeliveryCount())
		if number(message)%2 == 1 && message.RedeliveryCount() < 2 {
			consumer.Nack(message)
		} else {
			check(consumer.Ack(message))
		}
	}
	return outcome{"counts": counts, "left": texts(rest(consumer))}
}

// negativeAckInBatch: with batch index acknowledgement, only the rejected message of a batch comes again.
func negativeAckInBatch(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: nackDelay, EnableBatchIndexAcknowledgment: true,
	})
	r.send(batch("", 5), numbers(0, 5)...)
	counts := map[string][]uint32{}
	for _, message := range receive(consumer, 5) {
		counts[text(message)] = append(counts[text(message)], message.RedeliveryCount())
		if number(message) == 2 {
			consumer.Nack(message)
		} else {
			check(consumer.Ack(message))
		}
	}
	for _, message := range receiveAndAcknowledge(consumer, 1) {
		counts[text(message)] = append(counts[text(message)], message.RedeliveryCount())
	}
	return outcome{"counts": counts, "left": texts(rest(consumer))}
}

// deadLetters: this client counts deliveries, not redeliveries, and forwards a dead letter when the application receives.
func deadLetters(r *run) outcome {
	policy := &pulsar.DLQPolicy{MaxDeliveries: redeliveries + 1, DeadLetterTopic: r.topic("-s-DLQ")}
	consumer := r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared, NackRedeliveryDelay: nackDelay, DLQ: policy})
	dead := r.consumer(pulsar.ConsumerOptions{Topic: "-s-DLQ"})
	r.sendNumbers(0, 3)
	counts := map[string][]uint32{}
	for range 3 + redeliveries {
		message := receive(consumer, 1)[0]
		counts[text(message)] = append(counts[text(message)], message.RedeliveryCount())
		if number(message) == 1 {
			consumer.Nack(message)
		} else {
			check(consumer.Ack(message))
		}
	}
	letter := receive(dead, 1)[0]
	rest(consumer) // the client acknowledges the message some time after the letter has been stored, if it is not closed before
	consumer.Close()
	return outcome{
		"counts": counts, "dead": text(letter), "real_topic": letter.Properties()["REAL_TOPIC"] == r.topic(""),
		"left": texts(rest(r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared}))),
	}
}

func retryLetters(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{
		Type: pulsar.Shared, RetryEnable: true, DLQ: &pulsar.DLQPolicy{MaxDeliveries: redeliveries},
	})
	dead := r.consumer(pulsar.ConsumerOptions{Topic: "-s-DLQ"})
	r.sendNumbers(0, 1)
	tries := []any{}
	for range redeliveries + 1 {
		message := receive(consumer, 1)[0]
		tries = append(tries, orNil(message.Properties()["RECONSUMETIMES"]))
		consumer.ReconsumeLater(message, retryDelay)
	}
	return outcome{"tries": tries, "dead": text(receive(dead, 1)[0]), "left": texts(rest(consumer))}
}

func sendDelayed(r *run, after time.Duration) {
	message := &pulsar.ProducerMessage{Payload: []byte("delayed"), DeliverAfter: after}
	must(r.producer(pulsar.ProducerOptions{}).Send(context.Background(), message))
}

func delayedShared(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	sendDelayed(r, delay)
	r.send(pulsar.ProducerOptions{}, "now")
	return outcome{"received": texts(receive(consumer, 2))}
}

func delayedExclusive(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	sendDelayed(r, time.Hour)
	r.send(pulsar.ProducerOptions{}, "now")
	return outcome{"received": texts(receive(consumer, 2))}
}

// delayedAck: a delayed message does not hold the acknowledgement of later ones.
func delayedAck(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	sendDelayed(r, delay)
	r.sendNumbers(0, 5)
	first := texts(receiveAndAcknowledge(consumer, 5))
	consumer.Close()
	consumer = r.consumer(pulsar.ConsumerOptions{Type: pulsar.Shared})
	again := texts(receiveAndAcknowledge(consumer, 1))
	return outcome{"first": first, "again": append(again, texts(rest(consumer))...)}
}
