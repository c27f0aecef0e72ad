package redis_rate

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/quick"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/swlimit/swlimit/src/clients/go"
)

var background = context.Background()

// Conns end with their clients, and nothing of them is left. Only go-redis 9.23 does not always end clients of
// clusters.
func TestMain(m *testing.M) {
	code := m.Run()
	for until := time.Now().Add(30 * time.Second); clientsLeft() > 0 && time.Now().Before(until); time.Sleep(time.Millisecond) {
		runtime.GC()
	}
	if left := clientsLeft(); left > 0 {
		fmt.Println(left, "connections have outlived their clients")
		code = 1
	}
	clients.Lock()
	for _, conn := range clients.of {
		conn.Close()
	}
	clients.Unlock()
	notified := "github.com/redis/go-redis/v9/maintnotifications.(*CircuitBreakerManager).cleanupLoop"
	if err := goleak.Find(goleak.IgnoreTopFunction(notified)); err != nil {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// clientsLeft is the number of Clients that clients of one server have.
func clientsLeft() (left int) {
	clients.Lock()
	defer clients.Unlock()
	for which := range clients.of {
		if _, ok := which.(weak.Pointer[redis.Client]); ok {
			left++
		}
	}
	return left
}

// client is one of a server that pytest has started: SWLIMIT_PORTS says which there are.
func client(t testing.TB, name string) redis.UniversalClient {
	t.Helper()
	var ports map[string]int
	_ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports)
	if ports[name] == 0 {
		t.Skipf("there is no server %q: run `make test-go`", name)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[name])
	var made redis.UniversalClient = redis.NewClient(&redis.Options{Addr: addr})
	if name == "cluster" {
		made = redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	}
	t.Cleanup(func() { made.Close() })
	return made
}

var patient = []swlimit.Option{swlimit.Timeout(20 * time.Second), swlimit.OnFailure(swlimit.FailError)}

func TestDecides(t *testing.T) {
	for _, name := range []string{"main", "cluster"} {
		t.Run(name, func(t *testing.T) {
			rdb := client(t, name)
			l, key, limit := NewLimiter(rdb, patient...), rand.Text(), PerHour(10)
			result := func(r *Result, err error) Result {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				return *r
			}
			looks := func(r Result, allowed, remaining int, retry bool) {
				t.Helper()
				if r.Limit != limit || r.Allowed != allowed || r.Remaining != remaining || (r.RetryAfter > 0) != retry ||
					!retry && r.RetryAfter != -1 {
					t.Fatalf("%+v", r)
				}
			}
			nothing := result(l.AllowN(background, key, limit, 0))
			looks(nothing, 0, 10, false)
			if nothing.ResetAfter != 0 {
				t.Error(nothing.ResetAfter)
			}
			looks(result(l.Allow(background, key, limit)), 1, 9, false)
			looks(result(l.AllowN(background, key, limit, 6)), 6, 3, false)
			looks(result(l.AllowN(background, key, limit, 4)), 0, 3, true)
			looks(result(l.AllowAtMost(background, key, limit, 7)), 3, 0, false)
			spent := result(l.AllowAtMost(background, key, limit, 7))
			looks(spent, 0, 0, true)
			if longest := time.Hour + 5*time.Minute; spent.RetryAfter > longest || spent.ResetAfter > longest {
				t.Errorf("%+v", spent)
			}
			looks(result(l.AllowN(background, key, limit, 0)), 0, 0, false)
			looks(result(l.AllowAtMost(background, key, limit, 0)), 0, 0, false)
			if r := result(l.AllowN(background, key, limit, 11)); r.Allowed != 0 || r.RetryAfter != swlimit.Never {
				t.Errorf("%+v", r)
			}
			if name == "main" { // go-redis 9.23 never frees a ClusterClient that was used
				if n, err := rdb.Exists(background, "swlimit:"+key).Result(); n != 1 || err != nil {
					t.Error(n, err)
				}
			}
			if err := l.Reset(background, key); err != nil {
				t.Fatal(err)
			}
			looks(result(l.Allow(background, key, limit)), 1, 9, false)
		})
	}
}

// Windows are burst * period / rate, rounded up to milliseconds; a prime one may be a little longer.
func TestWindows(t *testing.T) {
	l := FromClient(nil)
	for limit, want := range map[Limit]swlimit.Quota{
		PerSecond(10):                    {Limit: 10, Window: time.Second, Resolution: 50 * time.Millisecond},
		PerMinute(7):                     {Limit: 7, Window: time.Minute, Resolution: 5 * time.Second},
		{10, 20, time.Second}:            {Limit: 20, Window: 2 * time.Second, Resolution: 125 * time.Millisecond},
		{3, 10, time.Second}:             {Limit: 10, Window: 3334 * time.Millisecond, Resolution: 2 * time.Millisecond},
		{1, 1, time.Millisecond}:         {Limit: 1, Window: time.Millisecond, Resolution: time.Millisecond},
		{5, 0, time.Second}:              {Limit: 0, Window: 200 * time.Millisecond, Resolution: 10 * time.Millisecond},
		{1, 1, 10007 * time.Millisecond}: {Limit: 1, Window: 10008 * time.Millisecond, Resolution: 834 * time.Millisecond},
	} {
		limiter, err := l.of(limit)
		if err != nil || limiter.Quota() != want {
			t.Errorf("%v: %+v, %v", limit, limiter.Quota(), err)
		}
	}
	exact := func(rate, burst uint32, period int64) bool {
		limit := Limit{int(rate>>1) + 1, int(burst >> 1), time.Duration(period&(1<<50-1)) + 1}
		got, err := limit.window()
		product := new(big.Int).Mul(big.NewInt(int64(max(1, limit.Burst))), big.NewInt(int64(limit.Period)))
		divisor := new(big.Int).Mul(big.NewInt(int64(limit.Rate)), big.NewInt(int64(time.Millisecond)))
		product.Add(product, divisor).Sub(product, big.NewInt(1)).Quo(product, divisor)
		if most := big.NewInt(int64(swlimit.Never / time.Millisecond)); product.Cmp(most) > 0 {
			return err == nil && got == swlimit.Never
		}
		return err == nil && got == time.Duration(product.Int64())*time.Millisecond
	}
	if err := quick.Check(exact, &quick.Config{MaxCount: 10_000}); err != nil {
		t.Error(err)
	}
}

func TestStrings(t *testing.T) {
	for limit, want := range map[Limit]string{
		PerSecond(10): "10 req/s (burst 10)", PerMinute(2): "2 req/m (burst 2)", PerHour(3): "3 req/h (burst 3)",
		{1, 5, 90 * time.Second}: "1 req/1m30s (burst 5)",
	} {
		if limit.String() != want || limit.IsZero() {
			t.Error(limit)
		}
	}
	if !(Limit{}).IsZero() {
		t.Error("not zero")
	}
}

// What cannot be is refused by the first call, because NewLimiter returns no error.
func TestRefuses(t *testing.T) {
	sentinels := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}}
	ring, failover := redis.NewRing(&redis.RingOptions{}), redis.NewFailoverClient(sentinels)
	defer ring.Close()
	defer failover.Close()
	for want, rdb := range map[string]rediser{"redis.Ring": ring, "FromFailover": failover, "redis.Pipeline": ring.Pipeline()} {
		l := NewLimiter(rdb)
		_, err := l.Allow(background, "key", PerSecond(1))
		if resetting := l.Reset(background, "key"); err == nil || err != resetting || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", want, err, resetting)
		}
	}
	if _, err := FromClient(nil, swlimit.Timeout(0)).Allow(background, "key", PerSecond(1)); !errors.Is(err, swlimit.ErrArgument) {
		t.Error(err)
	}
	l := FromClient(nil)
	for _, limit := range []Limit{{}, {0, 1, time.Second}, {1, -1, time.Second}, {1, 1, 0}, {1, 1 << 62, time.Hour}} {
		if _, err := l.Allow(background, "key", limit); !errors.Is(err, swlimit.ErrArgument) {
			t.Errorf("%v: %v", limit, err)
		}
	}
	if _, err := l.AllowN(background, "key", PerSecond(1), -1); !errors.Is(err, swlimit.ErrArgument) {
		t.Error(err)
	}
}

// A denial never looks like a grant, also where nobody says how long to wait.
func TestUnknown(t *testing.T) {
	conn, err := swlimit.NewClient(swlimit.Server{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := FromClient(conn, swlimit.OnFailure(swlimit.FailDeny)).Allow(background, "key", PerMinute(1))
	if err != nil || r.Allowed != 0 || r.RetryAfter != time.Minute || r.ResetAfter != time.Minute {
		t.Errorf("%+v, %v", r, err)
	}
}

// Limiters of a client share a Client, which ends once the client is gone: see TestMain, too.
func TestOneConnForEachClient(t *testing.T) {
	rdb, other := client(t, "main").(*redis.Client), client(t, "main").(*redis.Client)
	one, _ := clientOf(rdb)
	same, _ := clientOf(rdb)
	another, _ := clientOf(other)
	if one == nil || another == nil || one != same || one == another {
		t.Error(one, same, another)
	}
	if _, err := NewLimiter(rdb, patient...).Allow(background, rand.Text(), PerHour(1)); err != nil || len(one.Servers()) != 1 {
		t.Error(one.Servers(), err)
	}
	runtime.KeepAlive(rdb)
	runtime.KeepAlive(other)
}

// Limits without end are not remembered without end.
func TestRemembersSoManyLimits(t *testing.T) {
	l := FromClient(nil)
	for rate := range 3 * maxLimits {
		if _, err := l.of(PerSecond(rate + 1)); err != nil {
			t.Fatal(err)
		}
	}
	known := 0
	for range l.limiters.Range {
		known++
	}
	if known > maxLimits {
		t.Error(known)
	}
}

// A client that nobody else has is kept for as long as it is asked.
func TestKeepsTheClient(t *testing.T) {
	addr := client(t, "main").(*redis.Client).Options().Addr
	collected := func(ctx context.Context, network, _ string) (net.Conn, error) {
		for range 20 {
			runtime.GC()
			time.Sleep(5 * time.Millisecond)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	l := NewLimiter(redis.NewClient(&redis.Options{Dialer: collected}), patient...)
	if err := l.Reset(background, "k"); err != nil {
		t.Error(err)
	}
}
