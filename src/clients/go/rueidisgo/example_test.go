package rueidisgo_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/redis/rueidis"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/rueidisgo"
)

// A limiter on the servers that a client with the same option asks.
func ExampleNew() {
	option := rueidis.ClientOption{InitAddress: []string{"localhost:6379"}}
	client, err := rueidisgo.New(option)
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
	limiter, err := rueidisgo.Open("redis://localhost:6379", "100/minute")
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	decision, err := limiter.Allow(context.Background(), "user:1")
	fmt.Println(decision.Allowed(), err)
}
