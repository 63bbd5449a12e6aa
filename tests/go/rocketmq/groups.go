package main

import (
	"slices"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
)

// Members of groups: which queues they get, and where they begin.
var groups = map[string]func(*run) outcome{
	"rebalance": rebalance, "broadcast": broadcast, "resume": resume, "starts": starts, "start_last_empty": startLastEmpty,
	"two_groups": twoGroups,
}

const round = 20

// rebalance: two members, a third that joins, and one that leaves. This client neither stores its offsets when it is told to nor
// shows those that are stored, so messages may come twice.
func rebalance(r *run) outcome {
	members := []*member{r.member("").started(r), r.member("").started(r)}
	all := slices.Clone(members)
	sizes := [][]int{r.round(members, all, 0)}
	members = append(members, r.member("").started(r))
	all = append(all, members[2])
	sizes = append(sizes, r.round(members, all, 1))
	check(members[0].consumer.Shutdown())
	members = members[1:]
	sizes = append(sizes, r.round(members, all, 2))
	everybody := true
	for _, each := range all {
		everybody = everybody && len(each.got()) > 0
	}
	return outcome{"queues": sizes, "all_members": everybody}
}

func (r *run) round(members, all []*member, number int) []int {
	until("distinct queues", func() bool { return shared(members) })
	r.send(-1, numbers(number*round, (number+1)*round)...)
	until("the messages of a round", func() bool {
		seen := map[string]bool{}
		for _, each := range all {
			for _, message := range each.got() {
				seen[message.text()] = true
			}
		}
		return len(seen) == (number+1)*round
	})
	sizes := []int{}
	for _, each := range members {
		sizes = append(sizes, len(each.owned()))
	}
	slices.Sort(sizes)
	return sizes
}

// shared says if each queue has one member, and each member a queue.
func shared(members []*member) bool {
	queues, count := map[int]bool{}, 0
	for _, each := range members {
		owned := each.owned()
		for queue := range owned {
			queues[queue] = true
		}
		if len(owned) == 0 {
			return false
		}
		count += len(owned)
	}
	return len(queues) == queueCount && count == queueCount
}

func broadcast(r *run) outcome {
	members := []*member{}
	for range 2 {
		members = append(members, r.member("", consumer.WithConsumerModel(consumer.BroadCasting)).started(r))
	}
	r.send(-1, numbers(0, round)...)
	return outcome{"all_once": complete(members)}
}

func complete(members []*member) []bool {
	found := []bool{}
	for _, each := range members {
		found = append(found, isRange(each.receive(round), round))
	}
	return found
}

func resume(r *run) outcome {
	r.send(-1, numbers(0, round)...)
	first := r.member("").started(r)
	first.receive(round)
	check(first.consumer.Shutdown())
	r.send(-1, "a", "b", "c", "d")
	second := r.member("").started(r)
	return outcome{"first": isRange(first.got(), round), "second": sorted(second.receive(4))}
}

// starts: a broker begins a new group at the first message of a queue that is young, wherever the group wants to begin.
func starts(r *run) outcome {
	r.send(-1, numbers(0, 4)...)
	found := outcome{}
	hourAgo := consumer.WithConsumeTimestamp(time.Now().Add(-time.Hour).UTC().Format("20060102150405"))
	for name, where := range map[string]consumer.ConsumeFromWhere{
		"first": consumer.ConsumeFromFirstOffset, "last": consumer.ConsumeFromLastOffset, "timestamp": consumer.ConsumeFromTimestamp,
	} {
		found[name] = sorted(r.member("_"+name, consumer.WithConsumeFromWhere(where), hourAgo).started(r).receive(4))
	}
	return found
}

func startLastEmpty(r *run) outcome {
	reader := r.member("", consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)).started(r)
	reader.awaitQueues(queueCount)
	time.Sleep(quietTime)
	r.send(-1, numbers(0, 4)...)
	return outcome{"received": sorted(reader.receive(4))}
}

func twoGroups(r *run) outcome {
	members := []*member{r.member("_a").started(r), r.member("_b").started(r)}
	r.send(-1, numbers(0, round)...)
	return outcome{"all_once": complete(members)}
}
