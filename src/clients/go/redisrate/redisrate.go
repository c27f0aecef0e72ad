// Package redis_rate has the names of github.com/go-redis/redis_rate/v10, on the windows of swlimit: change the import,
// and keep the program.
//
// A rate r per period P with a burst b is one sliding window: b units in b*P/r, rounded up to milliseconds. So
// PerSecond(10) is 10 units in a window of a second.
package redis_rate

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
)

const (
	prefix    = "swlimit:" // not redis_rate's, whose keys are strings of another kind
	maxLimits = 1000       // the most limits that a Limiter remembers the windows of
)

// A Limit is a rate with a burst.
type Limit struct {
	// Rate is the number of units per Period, at least 1.
	Rate int
	// Burst is the most units at once. With 0 nothing is ever granted.
	Burst int
	// Period is the time in which Rate units come back, at least 1 ns.
	Period time.Duration
}

// String is such as "10 req/s (burst 20)".
func (l Limit) String() string {
	period := l.Period.String()
	switch l.Period {
	case time.Second:
		period = "s"
	case time.Minute:
		period = "m"
	case time.Hour:
		period = "h"
	}
	return fmt.Sprintf("%d req/%s (burst %d)", l.Rate, period, l.Burst)
}

// IsZero tells whether nothing of the limit is set.
func (l Limit) IsZero() bool { return l == Limit{} }

// PerSecond is a limit of so many units in a window of a second.
func PerSecond(rate int) Limit { return Limit{rate, rate, time.Second} }

// PerMinute is a limit of so many units in a window of a minute.
func PerMinute(rate int) Limit { return Limit{rate, rate, time.Minute} }

// PerHour is a limit of so many units in a window of an hour.
func PerHour(rate int) Limit { return Limit{rate, rate, time.Hour} }

// window is burst * period / rate, rounded up to milliseconds.
func (l Limit) window() (time.Duration, error) {
	if l.Rate < 1 || l.Burst < 0 || l.Period < 1 {
		return 0, fmt.Errorf("%w: a limit must have a positive rate and period, and no negative burst, unlike %d per %v "+
			"with a burst of %d", swlimit.ErrArgument, l.Rate, l.Period, l.Burst)
	}
	high, low := bits.Mul64(uint64(max(1, l.Burst)), uint64(l.Period))
	if high >= uint64(l.Rate) {
		return swlimit.Never, nil // longer than any window may be
	}
	nanoseconds, rest := bits.Div64(high, low, uint64(l.Rate))
	milliseconds := nanoseconds / uint64(time.Millisecond)
	if rest > 0 || nanoseconds%uint64(time.Millisecond) > 0 {
		milliseconds++
	}
	if milliseconds > uint64(swlimit.Never/time.Millisecond) {
		return swlimit.Never, nil
	}
	return time.Duration(milliseconds) * time.Millisecond, nil
}

// A Result is the answer to one request.
type Result struct {
	// Limit is the limit that was asked for.
	Limit Limit
	// Allowed is the number of units granted; 0 is a denial, or a question for 0 units.
	Allowed int
	// Remaining is the number of units that are still available; 0 where that is not known.
	Remaining int
	// RetryAfter is the time until the same request would be granted if nothing else is counted; -1 when it was granted,
	// swlimit.Never when it never will be, and the length of the window where it is not known.
	RetryAfter time.Duration
	// ResetAfter is the time until nothing counts any more, and the length of the window where that is not known.
	ResetAfter time.Duration
}

// rediser is what redis_rate takes. Of these, only what [goredis.New] takes is supported.
type rediser interface {
	redis.Scripter
	Del(ctx context.Context, keys ...string) *redis.IntCmd
}

// A Limiter decides for any number of keys and limits. All its methods may be called by several goroutines at once.
type Limiter struct {
	client rediser // whose end closes the Client
	*state
}

type state struct {
	base *swlimit.Limiter // of no limit in particular
	err  error            // why there is none

	limiters sync.Map     // by Limit
	known    atomic.Int64 // how many there are
}

// NewLimiter returns a limiter on the servers of a client: a *redis.Client or a *redis.ClusterClient. Others are
// refused at the first call. Keys begin with "swlimit:", unless an option says otherwise.
//
// All limiters of a client share the connections of one [swlimit.Client], which are closed when the garbage collector
// frees the client, after its limiters. That never happens to a ClusterClient of go-redis 9.23 that was used, even if
// it is closed. To close connections yourself, see [FromClient].
func NewLimiter(rdb rediser, options ...swlimit.Option) *Limiter {
	client, err := clientOf(rdb)
	if err != nil {
		return &Limiter{rdb, &state{err: err}}
	}
	limiter := FromClient(client, options...)
	limiter.client = rdb
	return limiter
}

// FromClient returns a limiter on a Client, which is the caller's to close: one of [goredis.FromFailover], for example.
func FromClient(client *swlimit.Client, options ...swlimit.Option) *Limiter {
	options = append([]swlimit.Option{swlimit.Prefix(prefix)}, options...)
	limiter, err := swlimit.New(client, swlimit.Quota{Window: time.Second}, options...)
	return &Limiter{nil, &state{base: limiter, err: err}}
}

// Allow is AllowN of one unit.
func (l Limiter) Allow(ctx context.Context, key string, limit Limit) (*Result, error) {
	return l.AllowN(ctx, key, limit, 1)
}

// AllowN decides n units, all or none of them. With 0 it tells what remains, and counts nothing.
func (l Limiter) AllowN(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	return l.decide(ctx, key, limit, n, (*swlimit.Limiter).AllowN)
}

// AllowAtMost grants as many of n units as fit. With 0 it tells what remains, and counts nothing.
func (l Limiter) AllowAtMost(ctx context.Context, key string, limit Limit, n int) (*Result, error) {
	return l.decide(ctx, key, limit, n, (*swlimit.Limiter).AllowAtMost)
}

// Reset forgets all that a key holds.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if l.err != nil {
		return l.err
	}
	defer runtime.KeepAlive(l.client)
	return l.base.Reset(ctx, key)
}

// asks is the method of a limiter that decides units.
type asks func(l *swlimit.Limiter, ctx context.Context, key string, n int64) (swlimit.Decision, error)

func (l Limiter) decide(ctx context.Context, key string, limit Limit, n int, ask asks) (*Result, error) {
	limiter, err := l.of(limit)
	if err != nil {
		return nil, err
	}
	var d swlimit.Decision
	if n == 0 {
		d, err = limiter.Peek(ctx, key)
		d.Granted = 0
	} else {
		d, err = ask(limiter, ctx, key, int64(n))
	}
	runtime.KeepAlive(l.client)
	if err != nil {
		return nil, err
	}
	result := &Result{Limit: limit, Allowed: int(d.Granted), RetryAfter: d.RetryAfter, ResetAfter: d.ResetAfter}
	if left, known := d.Remaining(); known {
		result.Remaining = int(left)
	}
	if d.Allowed() || n == 0 {
		result.RetryAfter = -1
	} else if d.RetryAfter == swlimit.Unknown {
		result.RetryAfter = limiter.Quota().Window
	}
	if d.ResetAfter == swlimit.Unknown {
		result.ResetAfter = limiter.Quota().Window
	}
	return result, nil
}

// of is the limiter of one limit.
func (s *state) of(limit Limit) (*swlimit.Limiter, error) {
	if s.err != nil {
		return nil, s.err
	}
	if limiter, ok := s.limiters.Load(limit); ok {
		return limiter.(*swlimit.Limiter), nil
	}
	window, err := limit.window()
	if err != nil {
		return nil, err
	}
	for {
		limiter, err := s.base.With(swlimit.Quota{Limit: int64(limit.Burst), Window: window})
		if err != nil {
			return nil, err
		}
		// A long window that is a prime number of milliseconds has no subintervals: one that is a little longer has.
		if limiter.Quota().Resolution < window || window < 12*time.Millisecond {
			if s.known.Add(1) > maxLimits {
				s.limiters.Clear()
				s.known.Store(1)
			}
			s.limiters.Store(limit, limiter)
			return limiter, nil
		}
		window += time.Millisecond
	}
}

// clients are those of limiters by that of go-redis, which is a weak pointer.
var clients = struct {
	sync.Mutex
	of map[any]*swlimit.Client
}{of: map[any]*swlimit.Client{}}

func clientOf(rdb rediser) (*swlimit.Client, error) {
	switch client := rdb.(type) {
	case *redis.Client:
		return shared(client, client)
	case *redis.ClusterClient:
		return shared(client, client)
	case redis.UniversalClient:
		return goredis.New(client) // which refuses it by name
	}
	return nil, fmt.Errorf("redis_rate: a %T is not supported: give a *redis.Client or a *redis.ClusterClient", rdb)
}

// shared is the Client of a client, which ends with it.
func shared[T any](pointer *T, client redis.UniversalClient) (*swlimit.Client, error) {
	clients.Lock()
	defer clients.Unlock()
	which := weak.Make(pointer)
	if known := clients.of[which]; known != nil {
		return known, nil
	}
	made, err := goredis.New(client)
	if err != nil {
		return nil, err
	}
	clients.of[which] = made
	runtime.AddCleanup(pointer, func(which weak.Pointer[T]) {
		clients.Lock()
		delete(clients.of, which)
		clients.Unlock()
		go made.Close() // not in the collector's time
	}, which)
	return made, nil
}
