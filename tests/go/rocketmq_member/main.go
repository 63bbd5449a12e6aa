// A push consumer of RocketMQ: a JSON line for each delivery, with the message's queue, offset and number, and the time (us).
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const pollTime = 50 * time.Millisecond

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// hold is the time that each call of the listener takes.
var hold time.Duration

func print(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	lines := ""
	for _, message := range batch {
		lines += fmt.Sprintf("{\"queue\": %d, \"offset\": %d, \"number\": %d, \"at\": %d}\n",
			message.Queue.QueueId, message.QueueOffset, binary.BigEndian.Uint64(message.Body), time.Now().UnixMicro())
	}
	_, err := os.Stdout.WriteString(lines)
	time.Sleep(hold)
	return consumer.ConsumeSuccess, err
}

func main() {
	nameServers := flag.String("name-servers", "", "host:port")
	topic := flag.String("topic", "", "its name")
	group := flag.String("group", "", "its name")
	until := flag.String("until", "", "the program ends when there is such a file")
	milliseconds := flag.Int("hold", 0, "ms that each call of the listener takes")
	flag.Parse()
	hold = time.Duration(*milliseconds) * time.Millisecond
	rlog.SetLogLevel("warn")
	member, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(*group), consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{*nameServers})),
		consumer.WithInstance(fmt.Sprint(os.Getpid())), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	check(err)
	check(member.Subscribe(*topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, print))
	check(member.Start())
	for _, err := os.Stat(*until); err != nil; _, err = os.Stat(*until) {
		time.Sleep(pollTime)
	}
	check(member.Shutdown())
}
