package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Subscription types: which member of a subscription gets a message.
var sharing = map[string]func(*run) outcome{
	"exclusive": exclusive, "failover": failover, "shared": shared, "shared_zero_queue": sharedZeroQueue,
	"key_shared": keyShared, "key_shared_sticky": keySharedSticky, "unacknowledged": unacknowledged,
	"cancelled_receive": cancelledReceive,
}

const (
	messages = 20
	keyCount = 20
	rounds   = 5
)

func exclusive(r *run) outcome {
	first, second := r.consumer(pulsar.ConsumerOptions{}), "accepted"
	if _, err := r.subscribe(pulsar.ConsumerOptions{}); err != nil && strings.Contains(err.Error(), "ConsumerBusy") {
		second = "busy"
	}
	r.sendNumbers(0, 3)
	received := texts(receive(first, 3))
	first.Close()
	return outcome{"second": second, "received": received, "after_close": texts(receive(r.consumer(pulsar.ConsumerOptions{}), 3))}
}

// notes counts the notes that a consumer has become the active one.
type notes struct{ active atomic.Int32 }

func (n *notes) BecameActive(pulsar.Consumer, string, int32) { n.active.Add(1) }

func (n *notes) BecameInactive(pulsar.Consumer, string, int32) {}

func failover(r *run) outcome {
	noted, members, received := []*notes{{}, {}}, []pulsar.Consumer{}, [][]pulsar.Message{{}, {}}
	for i, name := range []string{"a", "b"} {
		members = append(members, r.consumer(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: name, EventListener: noted[i]}))
	}
	r.sendNumbers(0, 5)
	for len(received[0])+len(received[1]) < 5 {
		for i, member := range members {
			if message := poll(member, pollTime); message != nil {
				received[i] = append(received[i], message)
			}
		}
	}
	active := 0
	if len(received[0]) == 0 {
		active = 1
	}
	acknowledge(members[active], received[active][:3])
	count := noted[1-active].active.Load()
	members[active].Close()
	r.sendNumbers(5, 8)
	takenOver := texts(receive(members[1-active], 5))
	return outcome{
		"active": texts(received[active]), "standby": texts(received[1-active]), "taken_over": takenOver,
		"noted": noted[active].active.Load() > 0 && noted[1-active].active.Load() > count,
	}
}

func spread(received [][]int, count int) outcome {
	return outcome{"all_once": isRange(slices.Concat(received...), count), "both": len(received[0]) > 0 && len(received[1]) > 0}
}

func shared(r *run) outcome {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 1}
	members := []pulsar.Consumer{r.consumer(options), r.consumer(options)}
	r.sendNumbers(0, messages)
	return spread(gather(members, messages), messages)
}

// sharedZeroQueue: with a queue of 0 the client asks for one message when the application does.
func sharedZeroQueue(r *run) outcome {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, EnableZeroQueueConsumer: true}
	members, received := []pulsar.Consumer{r.consumer(options), r.consumer(options)}, [][]int{{}, {}}
	r.sendNumbers(0, messages)
	for turn := range messages {
		for _, message := range receiveAndAcknowledge(members[turn%2], 1) {
			received[turn%2] = append(received[turn%2], number(message))
		}
	}
	return spread(received, messages)
}

func sendKeyed(r *run) {
	producer := r.producer(pulsar.ProducerOptions{})
	for i, value := range numbers(0, keyCount*rounds) {
		message := &pulsar.ProducerMessage{Payload: []byte(value), Key: fmt.Sprintf("k%d", i%keyCount)}
		must(producer.Send(context.Background(), message))
	}
}

func byKey(received []int) map[int][]int {
	found := map[int][]int{}
	for _, value := range received {
		found[value%keyCount] = append(found[value%keyCount], value)
	}
	return found
}

func keysOf(received []int) []int {
	keys := []int{}
	for key := range byKey(received) {
		keys = append(keys, key)
	}
	sort.Ints(keys)
	return keys
}

func keyShared(r *run) outcome {
	members := []pulsar.Consumer{}
	for _, name := range []string{"a", "b"} {
		members = append(members, r.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared, Name: name}))
	}
	sendKeyed(r)
	received := gather(members, keyCount*rounds)
	found, inOrder := spread(received, keyCount*rounds), true
	for _, mine := range received {
		for _, values := range byKey(mine) {
			inOrder = inOrder && sort.IntsAreSorted(values)
		}
	}
	found["in_order"] = inOrder
	found["one_member_per_key"] = len(keysOf(received[0]))+len(keysOf(received[1])) == keyCount
	return found
}

func keySharedSticky(r *run) outcome {
	members := []pulsar.Consumer{}
	for _, hashes := range [][]int{{0, 32767}, {32768, 65535}} {
		policy := must(pulsar.NewKeySharedPolicySticky(hashes))
		members = append(members, r.consumer(pulsar.ConsumerOptions{Type: pulsar.KeyShared, KeySharedPolicy: policy}))
	}
	sendKeyed(r)
	received := gather(members, keyCount*rounds)
	return outcome{"low": keysOf(received[0]), "high": keysOf(received[1])}
}

// unacknowledged: what a closed consumer of a shared subscription has not acknowledged goes to the others.
func unacknowledged(r *run) outcome {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared}
	first := r.consumer(options)
	r.sendNumbers(0, 5)
	kept := positionsOf(idsOf(receive(first, 5)))
	second := r.consumer(options)
	first.Close()
	received := receive(second, 5)
	sort.Slice(received, func(i, j int) bool { return number(received[i]) < number(received[j]) })
	return outcome{"received": texts(received), "same_ids": slices.Equal(positionsOf(idsOf(received)), kept)}
}

const waiting, racing = 5, 300

// cancelledReceive: receives that are cancelled lose nothing: neither those that wait, nor those to which a message comes just then.
func cancelledReceive(r *run) outcome {
	consumer, cancelled := r.consumer(pulsar.ConsumerOptions{}), true
	for range waiting {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := consumer.Receive(ctx)
			ended <- err
		}()
		cancel()
		cancelled = cancelled && <-ended != nil
	}
	r.sendNumbers(0, waiting)
	received, seen := texts(receiveAndAcknowledge(consumer, waiting)), map[int]bool{}
	producer := r.producer(pulsar.ProducerOptions{})
	for i := range racing {
		producer.SendAsync(context.Background(), numbered(int64(i)), func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		if message := poll(consumer, time.Duration(i%3)*time.Millisecond); message != nil {
			seen[number(message)] = true
			check(consumer.Ack(message))
		}
	}
	check(producer.FlushWithCtx(context.Background()))
	for _, message := range rest(consumer) {
		seen[number(message)] = true
	}
	consumer.Close()
	for _, message := range rest(r.consumer(pulsar.ConsumerOptions{})) { // a cancelled receive may have had it
		seen[number(message)] = true
	}
	return outcome{"cancelled": cancelled, "received": received, "racing": len(seen) == racing}
}
