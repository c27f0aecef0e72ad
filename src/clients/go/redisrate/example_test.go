package redis_rate_test

import (
	"context"
	"fmt"

	"github.com/swlimit/swlimit/src/clients/go/redisrate"
)

// Without a Client this process decides alone; NewLimiter takes a client instead.
func ExampleFromClient() {
	limiter := redis_rate.FromClient(nil)
	for range 2 {
		result, err := limiter.Allow(context.Background(), "project:123", redis_rate.PerHour(1))
		fmt.Println("allowed", result.Allowed, "remaining", result.Remaining, err)
	}
	// Output:
	// allowed 1 remaining 0 <nil>
	// allowed 0 remaining 0 <nil>
}
