package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	theirs "github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	ulule "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/redisrate"
)

const underWay = 32

// drive asks one of the limiters, as stores.mjs does those of Node.js: of each line of standard input, "KEYS TIMES", it
// prints how many requests were granted after each of so many keys had its requests.
func drive(name string, client *redis.Client, limit int, window time.Duration) {
	allows := limiters(client, limit, window)[name]()
	for {
		var keys, times int
		if _, err := fmt.Scan(&keys, &times); err != nil {
			return // nobody asks any more
		}
		fmt.Println(run(allows, keys, times))
	}
}

func limiters(client *redis.Client, limit int, window time.Duration) map[string]func() func(key string) bool {
	quota := swlimit.Quota{Limit: int64(limit), Window: window}
	patient := swlimit.Timeout(10 * time.Second)
	own := func(mode swlimit.Mode) func(key string) bool {
		l := limiterOf(client, quota, mode, patient)
		return func(key string) bool { return must(l.Allow(background, key)).Allowed() }
	}
	return map[string]func() func(key string) bool{
		"swlimit":        func() func(key string) bool { return own(swlimit.Cached) },
		"swlimit-direct": func() func(key string) bool { return own(swlimit.Direct) },
		"redisrate": func() func(key string) bool {
			l, rate := redis_rate.NewLimiter(client, patient), redis_rate.Limit{Rate: limit, Burst: limit, Period: window}
			return func(key string) bool { return must(l.Allow(background, key, rate)).Allowed > 0 }
		},
		"redis_rate": func() func(key string) bool {
			l, rate := theirs.NewLimiter(client), theirs.Limit{Rate: limit, Burst: limit, Period: window}
			return func(key string) bool { return must(l.Allow(background, key, rate)).Allowed > 0 }
		},
		"ulule": func() func(key string) bool {
			l := limiter.New(must(ulule.NewStore(client)), limiter.Rate{Period: window, Limit: int64(limit)})
			return func(key string) bool { return !must(l.Get(background, key)).Reached }
		},
	}
}

// run asks for each of so many keys, round after round, as often as is asked for.
func run(allows func(key string) bool, keys, times int) int64 {
	var next, granted atomic.Int64
	var working sync.WaitGroup
	for range underWay {
		working.Go(func() {
			for {
				number := int(next.Add(1)) - 1
				if number >= keys*times {
					return
				}
				if allows(fmt.Sprintf("key:%012d", number%keys)) {
					granted.Add(1)
				}
			}
		})
	}
	working.Wait()
	return granted.Load()
}

var background = context.Background()
