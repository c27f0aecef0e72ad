package goredis_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/go"
	"github.com/swlimit/swlimit/src/go/goredis"
)

// A decision beside the same command by go-redis itself, one at a time and 60 at once.
func BenchmarkDirect(b *testing.B) {
	var ports map[string]int
	if _ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports); ports["main"] == 0 {
		b.Skip("SWLIMIT_PORTS has no server")
	}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", ports["main"]), MaxRetries: -1})
	defer client.Close()
	conn, err := goredis.New(client)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: math.MaxInt64 >> 11, Window: time.Minute},
		swlimit.Mode(swlimit.Direct), swlimit.Timeout(20*time.Second))
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	for name, ask := range map[string]func() error{
		"limiter": func() error { _, err := limiter.Allow(ctx, "user:1"); return err },
		"go-redis": func() error {
			return client.Do(ctx, "SWLIMIT.ALLOW", "user:1", "4503599627370495", "60000ms", "5000ms").Err()
		},
	} {
		b.Run("1/"+name, func(b *testing.B) {
			for b.Loop() {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("60/"+name, func(b *testing.B) {
			b.SetParallelism(30)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := ask(); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
