// What decisions cost a program in Go, for go.py.
//
//	go-bench NAME PORT LIMIT WINDOW  asks a limiter (WINDOW in ms): see drive
//	go-bench costs PORT ROUNDS       prints what decisions cost this process, as JSON
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
)

const (
	plenty    = 1_000_000_000
	requests  = 6_000     // in a round of those that ask the server
	decisions = 1_000_000 // in a round of those that need not
)

func main() {
	name, words := os.Args[1], os.Args[2:]
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + words[0], MaxRetries: -1})
	defer client.Close()
	first := must(strconv.Atoi(words[1]))
	if name == "costs" {
		found := map[string]any{"asking": asking(client, first), "deciding": deciding(client, first)}
		fmt.Println(string(must(json.Marshal(found))))
		return
	}
	drive(name, client, first, time.Duration(must(strconv.Atoi(words[2])))*time.Millisecond)
}

// asking is µs a request of a limiter and of the client's own Do, by the number of requests at a time, in rounds that
// alternate.
func asking(client *redis.Client, rounds int) map[int][][2]float64 {
	l := limiterOf(client, swlimit.Quota{Limit: plenty, Window: time.Minute}, swlimit.Direct,
		swlimit.Timeout(10*time.Second))
	both := [2]func(){
		func() { must(l.Allow(background, "user:1")) },
		func() { must(client.Do(background, "SWLIMIT.ALLOW", "user:1", plenty, "60000ms", "5000ms").Result()) },
	}
	found := map[int][][2]float64{}
	for round := -1; round < rounds; round++ {
		for _, tasks := range []int{1, 60} {
			var pair [2]float64
			for side, ask := range both {
				pair[side] = cpu(func() {
					var working sync.WaitGroup
					for range tasks {
						working.Go(func() {
							for range requests / tasks {
								ask()
							}
						})
					}
					working.Wait()
				}) / requests / 1000
			}
			if round >= 0 { // the first one connects
				found[tasks] = append(found[tasks], pair)
			}
		}
	}
	return found
}

// A cost is that of decisions that need no server.
type cost struct {
	Nanoseconds []float64 // by round
	Allocations uint64    // a decision
}

func deciding(client *redis.Client, rounds int) map[string]*cost {
	denying := limiterOf(client, swlimit.Quota{Limit: 1, Window: time.Hour}, swlimit.Timeout(10*time.Second))
	for must(denying.Allow(background, "spent")).Source != swlimit.FromCache {
	}
	local := must(swlimit.New(nil, swlimit.Quota{Limit: 1 << 52, Window: time.Minute}))
	one := rate.NewLimiter(plenty, plenty)
	decide := map[string]func(){
		"denied": func() { must(denying.Allow(background, "spent")) },
		"local":  func() { must(local.Allow(background, "user:1")) },
		"rate":   func() { one.Allow() },
	}
	found := map[string]*cost{}
	for round := -1; round < rounds; round++ {
		for name, once := range decide {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			spent := cpu(func() {
				for range decisions {
					once()
				}
			}) / decisions
			runtime.ReadMemStats(&after)
			if found[name] == nil {
				found[name] = &cost{}
			}
			if round >= 0 {
				found[name].Nanoseconds = append(found[name].Nanoseconds, spent)
				found[name].Allocations = (after.Mallocs - before.Mallocs) / decisions
			}
		}
	}
	return found
}

func limiterOf(client *redis.Client, quota swlimit.Quota, options ...swlimit.Option) *swlimit.Limiter {
	return must(swlimit.New(must(goredis.New(client)), quota, options...))
}

// cpu is ns of all threads of this process.
func cpu(work func()) float64 {
	before := used()
	work()
	return float64(used() - before)
}

func used() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
