package swlimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
)

// Without a Client this process decides alone.
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

func ExampleAllowAll() {
	hourly, err := swlimit.New(nil, swlimit.Quota{Limit: 100, Window: time.Hour}, swlimit.Prefix("hour:"))
	if err != nil {
		panic(err)
	}
	daily, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: 24 * time.Hour}, swlimit.Prefix("day:"))
	if err != nil {
		panic(err)
	}
	for range 2 {
		all, err := swlimit.AllowAll(context.Background(), hourly.Request("user:1", 1), daily.Request("user:1", 1))
		fmt.Println(all.Allowed, err)
	}
	left, _ := hourly.Peek(context.Background(), "user:1")
	fmt.Println(left.Remaining()) // what is denied counts nowhere
	// Output:
	// true <nil>
	// false <nil>
	// 99 true
}

func ExampleNewBudget() {
	tokens, err := swlimit.NewBudget(nil, 1000, swlimit.Monthly(1), time.UTC)
	if err != nil {
		panic(err)
	}
	for range 2 {
		decision, err := tokens.AllowN(context.Background(), "user:1", 600)
		fmt.Println(decision.Granted, err)
	}
	// Output:
	// 600 <nil>
	// 0 <nil>
}
