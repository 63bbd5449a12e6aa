package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// What a producer sends arrives as it was sent.
var sending = map[string]func(*run) outcome{
	"single": single, "batched": batched, "message_ids": messageIDs, "compression": compression, "chunked": chunked,
	"encryption": encryption, "producer_names": producerNames, "deduplication": deduplication, "many": many,
	"exclusive_producer": exclusiveProducer, "schema": schema, "too_large": tooLarge,
}

var properties = map[string]string{"plain": "1", "empty": "", "text": "ä€"}

const (
	eventTime = 1_700_000_000_123
	large     = 12_000_000
	larger    = 6_000_000

	manyMessages = 5000
)

func orNil(value string) any {
	if value == "" {
		return nil
	}
	return value
}

func describe(message pulsar.Message) outcome {
	found := message.Properties()
	if found == nil {
		found = map[string]string{}
	}
	return outcome{
		"value": text(message), "properties": found, "key": orNil(message.Key()), "ordering_key": orNil(message.OrderingKey()),
		"event_time": max(0, message.EventTime().UnixMilli()), "has_publish_time": message.PublishTime().UnixMilli() > 0,
		"redeliveries": message.RedeliveryCount(),
	}
}

func sendDescribed(r *run, options pulsar.ProducerOptions) ([]pulsar.Message, outcome) {
	consumer, producer := r.consumer(pulsar.ConsumerOptions{}), r.producer(options)
	for _, message := range []*pulsar.ProducerMessage{
		{Payload: []byte("0"), Properties: properties, Key: "k", OrderingKey: "o", EventTime: time.UnixMilli(eventTime)},
		{Payload: []byte("1")},
	} {
		producer.SendAsync(context.Background(), message, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	check(producer.Flush())
	messages := receive(consumer, 2)
	entries, described := map[int64]bool{}, []outcome{}
	for _, message := range messages {
		entries[message.ID().EntryID()] = true
		described = append(described, describe(message))
	}
	return messages, outcome{"messages": described, "entries": len(entries)}
}

func single(r *run) outcome {
	_, found := sendDescribed(r, pulsar.ProducerOptions{})
	return found
}

func batched(r *run) outcome {
	messages, found := sendDescribed(r, batch("", 2))
	found["indexes"] = []int32{messages[0].ID().BatchIdx(), messages[1].ID().BatchIdx()}
	return found
}

func messageIDs(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{})
	sent := slices.Concat(r.sendNumbers(0, 3), r.send(batch("", 3), numbers(3, 6)...), r.sendNumbers(6, 8))
	received := idsOf(receive(consumer, 8))
	again := []position{}
	for _, id := range received {
		again = append(again, positionOf(must(pulsar.DeserializeMessageID(id.Serialize()))))
	}
	found := positionsOf(received)
	return outcome{
		"receipts_are_ids": slices.Equal(positionsOf(sent), found),
		"ascending":        slices.IsSortedFunc(found, func(a, b position) int { return map[bool]int{true: -1, false: 1}[before(a, b)] }),
		"bytes_make_ids":   slices.Equal(again, found),
	}
}

func compression(r *run) outcome {
	consumer, received := r.consumer(pulsar.ConsumerOptions{}), outcome{}
	for name, codec := range map[string]pulsar.CompressionType{
		"LZ4": pulsar.LZ4, "ZLIB": pulsar.ZLib, "ZSTD": pulsar.ZSTD, "SNAPPY": pulsar.SNAPPY,
	} {
		r.send(pulsar.ProducerOptions{CompressionType: codec}, strings.Repeat("x", 10_000))
		options := batch("", 10)
		options.CompressionType = codec
		r.send(options, slices.Repeat([]string{strings.Repeat("x", 100)}, 10)...)
		lengths := []int{}
		for _, message := range receive(consumer, 11) {
			lengths = append(lengths, strings.Count(text(message), "x"))
		}
		received[name] = lengths
	}
	return received
}

func chunked(r *run) outcome {
	payload := make([]byte, large)
	for i := range payload {
		payload[i] = byte(i % 251)
	}
	consumer, producer := r.consumer(pulsar.ConsumerOptions{}), r.producer(pulsar.ProducerOptions{EnableChunking: true})
	for _, message := range []*pulsar.ProducerMessage{
		{Payload: []byte("before")}, {Payload: payload, Properties: properties}, {Payload: []byte("after")},
	} {
		must(producer.Send(context.Background(), message))
	}
	messages := receiveAndAcknowledge(consumer, 3)
	consumer.Close()
	return outcome{
		"size": len(messages[1].Payload()), "same": bytes.Equal(messages[1].Payload(), payload),
		"properties": messages[1].Properties(), "around": []string{text(messages[0]), text(messages[2])},
		"left": len(rest(r.consumer(pulsar.ConsumerOptions{}))),
	}
}

func encryption(r *run) outcome {
	reader := crypto.NewFileKeyReader(r.keys+"/public.pem", r.keys+"/private.pem")
	from := pulsar.SubscriptionPositionEarliest
	withKey := r.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "with", SubscriptionInitialPosition: from, Decryption: &pulsar.MessageDecryptionInfo{KeyReader: reader},
	})
	withoutKey := r.consumer(pulsar.ConsumerOptions{
		SubscriptionName: "without", SubscriptionInitialPosition: from,
		Decryption: &pulsar.MessageDecryptionInfo{
			KeyReader:                   crypto.NewFileKeyReader("", ""),
			ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume,
		},
	})
	options := batch("", 3)
	options.Encryption = &pulsar.ProducerEncryptionInfo{KeyReader: reader, Keys: []string{"features"}}
	r.send(options, slices.Repeat([]string{"secret"}, 3)...)
	unread := receive(withoutKey, 1)[0]
	names := []string{}
	for name := range unread.GetEncryptionContext().Keys {
		names = append(names, name)
	}
	return outcome{
		"with_key": texts(receive(withKey, 3)), "hidden": !strings.Contains(text(unread), "secret"), "key_names": names,
	}
}

func numbered(number int64) *pulsar.ProducerMessage {
	return &pulsar.ProducerMessage{Payload: []byte(numbers(int(number), int(number)+1)[0]), SequenceID: &number}
}

func producerNames(r *run) outcome {
	name := "named-" + r.base
	consumer, named := r.consumer(pulsar.ConsumerOptions{}), r.producer(pulsar.ProducerOptions{Name: name})
	second := "accepted"
	once := uint(0)
	options := pulsar.ProducerOptions{Topic: r.base, Name: name, MaxReconnectToBroker: &once}
	if _, err := r.client.CreateProducer(options); err != nil && strings.Contains(err.Error(), "ProducerBusy") {
		second = "busy"
	}
	for number := int64(101); number < 104; number++ {
		must(named.Send(context.Background(), numbered(number)))
	}
	generated := []string{}
	for range 2 {
		producer := r.producer(pulsar.ProducerOptions{})
		must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")}))
		generated = append(generated, producer.Name())
	}
	seen := []string{}
	for _, message := range receive(consumer, 5) {
		seen = append(seen, message.ProducerName())
	}
	return outcome{
		"names":     []bool{seen[0] == name, seen[1] == name, seen[2] == name},
		"generated": slices.Equal(seen[3:], generated) && generated[0] != generated[1] && !slices.Contains(generated, ""),
		"second":    second, "last_sequence_id": named.LastSequenceID(),
	}
}

// deduplication: this client does not show the last sequence id that the server names when the producer is opened.
func deduplication(r *run) outcome {
	consumer, options := r.consumer(pulsar.ConsumerOptions{}), pulsar.ProducerOptions{Name: "named-" + r.base}
	producer := r.producer(options)
	for _, number := range []int64{1, 2, 3, 2, 3, 4} {
		must(producer.Send(context.Background(), numbered(number)))
	}
	producer.Close()
	producer = r.producer(options)
	for _, number := range []int64{3, 4, 5} {
		must(producer.Send(context.Background(), numbered(number)))
	}
	return outcome{"received": texts(rest(consumer))}
}

// many sends more messages than fit into the queue of the consumer, in batches as the client makes them.
func many(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{ReceiverQueueSize: 100})
	expected := numbers(0, manyMessages)
	r.send(pulsar.ProducerOptions{BatchingMaxMessages: 1000, MaxPendingMessages: manyMessages}, expected...)
	received := texts(receiveAndAcknowledge(consumer, manyMessages))
	consumer.Close()
	return outcome{
		"received": len(received), "in_order": slices.Equal(received, expected),
		"left": texts(rest(r.consumer(pulsar.ConsumerOptions{}))),
	}
}

func exclusiveProducer(r *run) outcome {
	consumer, options := r.consumer(pulsar.ConsumerOptions{}), pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive}
	first, second := r.producer(options), "accepted"
	must(first.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("first")}))
	if _, err := r.client.CreateProducer(pulsar.ProducerOptions{Topic: r.base}); err != nil {
		for _, name := range []string{"ProducerFenced", "ProducerBusy"} {
			if strings.Contains(err.Error(), name) {
				second = "refused"
			}
		}
	}
	first.Close()
	must(r.producer(options).Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("third")}))
	return outcome{"second": second, "after_close": texts(receive(consumer, 2))}
}

type named struct {
	Name string `json:"name"`
}

const namedSchema = `{"type": "record", "name": "Named", "fields": [{"name": "name", "type": "string"}]}`

// schema: this client sends no version of the schema with its messages.
func schema(r *run) outcome {
	consumer := r.consumer(pulsar.ConsumerOptions{Schema: pulsar.NewJSONSchema(namedSchema, nil)})
	producer := r.producer(pulsar.ProducerOptions{Schema: pulsar.NewJSONSchema(namedSchema, nil)})
	for _, name := range []string{"a", "b"} {
		must(producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &named{name}}))
	}
	received, other := []string{}, "accepted"
	for _, message := range receive(consumer, 2) {
		var value named
		check(message.GetSchemaValue(&value))
		received = append(received, value.Name)
	}
	options := pulsar.ProducerOptions{Topic: r.base, Schema: pulsar.NewStringSchema(nil)}
	if _, err := r.client.CreateProducer(options); err != nil && strings.Contains(err.Error(), "IncompatibleSchema") {
		other = "refused"
	}
	return outcome{"received": received, "other_schema": other}
}

func tooLarge(r *run) outcome {
	consumer, producer := r.consumer(pulsar.ConsumerOptions{}), r.producer(pulsar.ProducerOptions{})
	var failure any
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, larger)}); errors.Is(err, pulsar.ErrMessageTooLarge) {
		failure = "too large"
	}
	must(producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("after")}))
	return outcome{"error": failure, "received": texts(receive(consumer, 1))}
}
