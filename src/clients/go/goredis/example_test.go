package goredis_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
)

// A limiter beside the client that a program has already: on its server, with its credentials.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	client, err := goredis.New(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	limiter, err := swlimit.New(client, swlimit.Quota{Limit: 100, Window: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	decision, err := limiter.Allow(context.Background(), "user:1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(decision.Allowed(), decision.RetryAfter)
}

// A limiter with connections of its own, which its Close closes.
func ExampleOpen() {
	limiter, err := goredis.Open("redis://localhost:6379", "100/minute")
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	decision, err := limiter.Allow(context.Background(), "user:1")
	fmt.Println(decision.Allowed(), err)
}

// The primary that sentinels name.
func ExampleFromFailover() {
	client, err := goredis.FromFailover(&redis.FailoverOptions{MasterName: "mymaster",
		SentinelAddrs: []string{"sentinel-1:26379", "sentinel-2:26379", "sentinel-3:26379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	fmt.Println(client.Ping(context.Background()))
}
