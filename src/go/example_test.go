package swlimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/swlimit/swlimit/src/go"
)

// Without a Conn this process decides alone.
func ExampleNew() {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Minute})
	if err != nil {
		panic(err)
	}
	for range 2 {
		decision, err := limiter.Allow(context.Background(), "user:1")
		fmt.Println(decision.Granted, decision.Source, err)
	}
	// Output:
	// 1 local <nil>
	// 0 local <nil>
}

func ExampleLimiter_Wait() {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Hour})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, "user:1"))
	fmt.Println(errors.Is(limiter.Wait(ctx, "user:1"), swlimit.ErrDenied)) // at once: a second would not be enough
	// Output:
	// <nil>
	// true
}

func ExampleHolds_TryAcquire() {
	streams, err := swlimit.NewHolds(nil, 1, time.Minute)
	if err != nil {
		panic(err)
	}
	hold, err := streams.TryAcquire(context.Background(), "user:1")
	if err != nil {
		panic(err)
	}
	_, err = streams.TryAcquire(context.Background(), "user:1")
	fmt.Println(hold.Live(), err)
	hold.Release()
	// Output: true swlimit: denied
}
