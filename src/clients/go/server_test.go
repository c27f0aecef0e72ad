package swlimit

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A look is two commands: behind the fourth denial, and not behind three.
func TestFewDenialsAreNotLookedUp(t *testing.T) {
	client := dial(t)
	l, k := limiter(t, client, 1), key()
	looks := func() bool {
		p := must(client.primary(background, k, 0))
		p.tracker.mu.Lock()
		defer p.tracker.mu.Unlock()
		return p.tracker.connection != nil || p.tracker.opening != nil || len(p.tracker.looking) > 0
	}
	for range 4 {
		if d := must(l.Allow(background, k)); d.Source != FromServer || looks() {
			t.Errorf("%+v", d)
		}
	}
	must(l.Allow(background, k))
	eventually(t, "a look", looks)
}

func TestHolds(t *testing.T) {
	t.Parallel()
	byBoth(t, testHolds)
}

func testHolds(t *testing.T, addr string) {
	t.Parallel()
	client := connect(t, Server{Addr: addr})
	holds, err := NewHolds(client, 2, 3*time.Second, Timeout(20*time.Second), OnFailure(FailError))
	if err != nil {
		t.Fatal(err)
	}
	k := key()
	first, second := must(holds.TryAcquire(background, k)), must(holds.Acquire(background, k))
	if first.Token == 0 || second.Token <= first.Token || !first.Live() || first.Context().Err() != nil {
		t.Errorf("%+v, %+v", first, second)
	}
	if _, err := holds.TryAcquire(background, k); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	got := make(chan *Hold)
	go func() { got <- must(holds.Acquire(background, k)) }()
	eventually(t, "waits", func() bool { return inLine(client, k) == 1 })
	first.Release()
	first.Release()
	third := <-got
	<-first.Done()
	if first.Live() || context.Cause(first.Context()) != context.Canceled {
		t.Error("released, and live")
	}
	time.Sleep(4 * time.Second) // longer than its time to live: it was renewed
	if all := must(holds.Holders(background, k, 10)); len(all) != 2 || !third.Live() {
		t.Errorf("%+v", all)
	}
	if err := holds.Reset(background, k); err != nil {
		t.Fatal(err)
	}
	<-third.Done()
	if third.Live() || context.Cause(third.Context()) != ErrLost {
		t.Error("lost, and not known to be")
	}
}

func TestLocalHolds(t *testing.T) {
	holds, err := NewHolds(nil, 1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	hold := must(holds.Acquire(background, "k"))
	if _, err := holds.TryAcquire(background, "k"); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	got := make(chan *Hold)
	go func() { got <- must(holds.Acquire(background, "k")) }()
	hold.Release()
	if again := <-got; !again.Live() || again.Source != FromLocal {
		t.Errorf("%+v", again)
	}
}

// A relay is a server's address at which one reply in so many is lost, with its connection. Replies that come together
// count as one.
type relay struct {
	addr, to   string
	loses      int64
	came, lost atomic.Int64
}

func newRelay(t *testing.T, to string, loses int64) *relay {
	t.Helper()
	r := &relay{to: to, loses: loses}
	r.addr = serve(t, "127.0.0.1:0", r.carry).Addr().String()
	return r
}

func (r *relay) carry(client net.Conn) {
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, client); server.Close() }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if r.loses > 0 && r.came.Add(1)%r.loses == 0 {
			r.lost.Add(1)
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Cancelled anywhere, through a relay that loses replies: what the server has counted is what was granted, and what it
// granted to callers that lost the reply. Never more than what was sent.
func TestCancelled(t *testing.T) {
	t.Parallel()
	byBoth(t, func(t *testing.T, addr string) {
		for _, loses := range []int64{0, 20} {
			relay := newRelay(t, addr, loses)
			for _, parallel := range []int{60, 1000} {
				testCancelled(t, Server{Addr: relay.addr}, Server{Addr: addr}, parallel, relay.lost.Load)
			}
			for n := 0; loses > 0 && relay.lost.Load() == 0; n++ {
				if n == 50 {
					t.Fatal("no connection was lost")
				}
				testCancelled(t, Server{Addr: relay.addr}, Server{Addr: addr}, 60, relay.lost.Load)
			}
		}
	})
}

// testCancelled asks through one Transport, and counts through another; lost is how many replies were lost on the way.
func testCancelled(t *testing.T, through, direct Transport, parallel int, lost func() int64) {
	t.Helper()
	client := must(NewClient(through))
	l := limiter(t, client, 1_000_000, Direct)
	k := key()
	var granted, unknown, sent, cancelled atomic.Int64
	var running sync.WaitGroup
	for range parallel {
		running.Go(func() {
			for range 5 {
				ctx, cancel := context.WithCancel(background)
				if rand.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				sent.Add(1)
				d, err := l.Allow(ctx, k)
				switch {
				case errors.Is(err, context.Canceled):
					cancelled.Add(1)
				case err != nil:
					unknown.Add(1)
				default:
					granted.Add(d.Granted)
				}
				cancel()
			}
		})
	}
	running.Wait()
	client.Close()
	left, _ := must(limiter(t, connect(t, direct), 1_000_000, Direct).Peek(background, k)).Remaining()
	counted := 1_000_000 - left
	// Of what a lost connection leaves in doubt nobody knows, cancelled or not.
	if counted > sent.Load() || counted < granted.Load() || lost() == 0 && counted != granted.Load() {
		t.Errorf("%d counted of %d sent: %d granted, %d unknown, %d cancelled, %d connections lost", counted,
			sent.Load(), granted.Load(), unknown.Load(), cancelled.Load(), lost())
	}
	if cancelled.Load() == 0 {
		t.Error("nothing was cancelled")
	}
}

func TestNothingIsLeft(t *testing.T) {
	running := func() string {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		return stacks.String()
	}
	eventually(t, "other tests are over", func() bool { return !strings.Contains(running(), "(*connection)") })
	client := must(NewClient(Server{Addr: address(t, "main")}))
	l := limiter(t, client, 1)
	holds := must(NewHolds(client, 5, time.Minute, Timeout(20*time.Second)))
	if strings.Contains(running(), "(*connection)") {
		t.Error("a goroutine before the first use")
	}
	k := key()
	for range 5 {
		must(l.Allow(background, k))
	}
	hold := must(holds.TryAcquire(background, "holds:"+k))
	client.Close()
	client.Close()
	<-hold.Done()
	eventually(t, "no goroutine is left", func() bool {
		stacks := running()
		return !strings.Contains(stacks, "(*connection)") && !strings.Contains(stacks, "(*tracker)") &&
			!strings.Contains(stacks, "(*renewer)") && !strings.Contains(stacks, "(*server)")
	})
	if _, err := l.Allow(background, k+"2"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if n := len(must(must(NewHolds(dial(t), 5, time.Minute)).Holders(background, "holds:"+k, 10))); n != 0 {
		t.Errorf("%d held still", n)
	}
}

func TestContexts(t *testing.T) {
	l := limiter(t, dial(t), 10)
	ctx, cancel := context.WithCancel(background)
	cancel()
	k := key()
	if _, err := l.Allow(ctx, k); err != context.Canceled {
		t.Error(err)
	}
	past, cancel := context.WithDeadline(background, time.Now().Add(-time.Second))
	defer cancel()
	if _, err := l.Allow(past, k); err != context.DeadlineExceeded {
		t.Error(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := connect(t, Server{Addr: silent.Addr().String()})
	far := must(New(client, Quota{Limit: 10, Window: time.Minute}, Timeout(time.Hour)))
	soon, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	if d, err := far.Allow(soon, k); err != nil || d.Source != FromFailure {
		t.Errorf("the policy decides before the caller's deadline: %+v, %v", d, err)
	}
}
