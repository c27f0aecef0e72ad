package swlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A denying server denies the first request, and each after it unless it is late. It lets nobody wait.
type denying struct {
	byScript bool
	late     chan struct{} // once that is closed, it grants the second request, and all after it; nil: it denies them
	asked    atomic.Int64

	mu   sync.Mutex
	back []string // the commands that give back
}

func (s *denying) reply(_ string, words []any) string {
	var name string
	for _, word := range words {
		text := strings.TrimPrefix(word.(string), prefix)
		if name == "" && slices.Contains([]string{"ADMIT", "HOLD", "ACQUIRE", "ALLOW", "RELEASE", "REFUND", "SETTLE"}, text) {
			name = text
		}
	}
	packed := words[0] == "EVALSHA" && name == "" // an ALLOW in one argument
	switch {
	case words[0] == "TIME":
		return "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"
	case name == "" && !packed, words[0] == prefix+name && s.byScript:
		return noReply
	case len(words) == 1: // how a connection begins
		return "-ERR wrong number of arguments\r\n"
	case slices.Contains([]string{"RELEASE", "REFUND", "SETTLE"}, name):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.back = append(s.back, name)
		return "*1\r\n:0\r\n"
	case name == "HOLD" && slices.Contains(words, any("WAIT")) && !s.byScript, name == "ACQUIRE" && words[5] != "0ms":
		return "-UNBLOCKED for a test\r\n"
	}
	granted := 0
	if s.asked.Add(1) > 1 && s.late != nil {
		<-s.late
		granted = 1
	}
	rate := fmt.Sprintf("*5\r\n:%d\r\n:7\r\n:0\r\n:50\r\n:1000\r\n", granted)
	held := fmt.Sprintf("*6\r\n:%d\r\n:7\r\n:0\r\n:50\r\n:1\r\n:1\r\n", granted)
	switch {
	case name == "HOLD":
		return held
	case name == "ADMIT" && slices.Contains(words, any("HOLD")):
		return fmt.Sprintf("*4\r\n:%d\r\n%s%s%s", granted, held, rate, held)
	case name == "ADMIT":
		return fmt.Sprintf("*2\r\n:%d\r\n%s", granted, rate)
	}
	return rate
}

// ending is a context whose deadline is far, and comes at the first call of Err once it is armed.
type ending struct {
	context.Context
	armed func() bool
	ended atomic.Bool
}

func (e *ending) Err() error {
	if e.armed() {
		e.ended.Store(true)
	}
	return nil
}

func (e *ending) Deadline() (time.Time, bool) {
	if e.ended.Load() {
		return time.Now().Add(time.Millisecond), true
	}
	return time.Now().Add(10 * time.Second), true
}

// A caller that waits, was denied, and has no time left gets its denial, whatever OnFailure says: the server answered.
// What comes too late goes back.
func TestDeniedWhenItsTimeEnds(t *testing.T) {
	callers := map[string]struct {
		run  func(ctx context.Context, client *Client, options ...Option) (denial *DeniedError, err error)
		back string
	}{
		"wait": {func(ctx context.Context, client *Client, options ...Option) (denial *DeniedError, err error) {
			l := must(New(client, Quota{Limit: 100, Window: time.Minute}, append(options, Direct)...))
			err = l.Wait(ctx, "k")
			errors.As(err, &denial)
			return denial, err
		}, "REFUND"},
		"hold": {func(ctx context.Context, client *Client, options ...Option) (denial *DeniedError, err error) {
			_, err = must(NewHolds(client, 100, time.Minute, options...)).Acquire(ctx, "k")
			errors.As(err, &denial)
			return denial, err
		}, "RELEASE"},
		"admit": {func(ctx context.Context, client *Client, options ...Option) (denial *DeniedError, err error) {
			l := must(New(client, Quota{Limit: 100, Window: time.Minute}, append(options, Direct)...))
			a, err := Admit(ctx, []Part{l.Request("k", 1)}, WaitFor(time.Hour))
			if err != nil {
				return nil, err
			}
			return a.DeniedBy(), nil
		}, "REFUND"},
		"admit with a hold": {func(ctx context.Context, client *Client, options ...Option) (denial *DeniedError, err error) {
			l := must(New(client, Quota{Limit: 100, Window: time.Minute}, append(options, Direct)...))
			h := must(NewHolds(client, 100, time.Minute, options...))
			a, err := Admit(ctx, []Part{l.Request("k", 1), h.Request("h", 1)}, WaitFor(time.Hour))
			if err != nil {
				return nil, err
			}
			return a.DeniedBy(), nil
		}, "SETTLE"},
	}
	var running sync.WaitGroup
	for name, caller := range callers {
		for _, byScript := range []bool{false, true} {
			for _, policy := range []FailurePolicy{FailAllow, FailLocal, FailDeny, FailError} {
				for _, isLate := range []bool{false, true} {
					running.Go(func() {
						server := &denying{byScript: byScript}
						client := connect(t, Server{Addr: fake(t, server.reply)})
						var ctx context.Context = &ending{Context: background,
							armed: func() bool { return server.asked.Load() > 0 }}
						if isLate { // the end comes while the server is asked
							soon, cancel := context.WithTimeout(background, 3*time.Second)
							defer cancel()
							server.late, ctx = make(chan struct{}), soon
						}
						denial, err := caller.run(ctx, client, Timeout(20*time.Second), OnFailure(policy))
						if err != nil && !errors.Is(err, ErrDenied) || denial == nil || denial.Decision.Source != FromServer ||
							denial.Decision.Limit != 7 || denial.Decision.RetryAfter != 50*time.Millisecond {
							t.Errorf("%s, %v, %s, %v: %+v, %v", name, byScript, policy, isLate, denial, err)
						}
						if !isLate {
							return
						}
						close(server.late)
						for range 2000 {
							server.mu.Lock()
							isBack := slices.Contains(server.back, caller.back)
							server.mu.Unlock()
							if isBack {
								return
							}
							time.Sleep(10 * time.Millisecond)
						}
						t.Errorf("%s, %v, %s: what came too late is not given back", name, byScript, policy)
					})
				}
			}
		}
	}
	running.Wait()
}

// Also where the script decides, and the next unit comes in a minute.
func TestCloseEndsWaits(t *testing.T) {
	byBoth(t, func(t *testing.T, addr string) {
		client := connect(t, Server{Addr: addr})
		l, k := limiter(t, client, 1, Direct), key()
		must(l.Allow(background, k))
		holds := holding(t, client, 1)
		must(holds.TryAcquire(background, k+"held"))
		ended := make(chan error)
		for n := range 3 {
			go func() { ended <- l.Wait(background, k) }()
			go func() { _, err := holds.Acquire(background, k+"held"); ended <- err }()
			eventually(t, "they wait", func() bool { return inLine(client, k) == n+1 && inLine(client, k+"held") == n+1 })
		}
		time.Sleep(100 * time.Millisecond)
		for range 2 { // also who closes it while it is closed waits until it is
			go func() { ended <- errors.Join(client.Close(), client.ctx.Err()) }()
		}
		for range 8 {
			select {
			case err := <-ended:
				if !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("one waits still")
			}
		}
	})
}

// A caller that waits goes on when the server loses a connection, also where the script decides.
func TestWaitsOutliveConnections(t *testing.T) {
	for _, byScript := range []bool{false, true} {
		server := &denying{byScript: byScript}
		addr := fake(t, func(addr string, words []any) string {
			reply := server.reply(addr, words)
			switch {
			case !strings.HasPrefix(reply, "*5"):
				return reply
			case server.asked.Load() == 2:
				return "broken\r\n"
			case server.asked.Load() > 2:
				return "*5\r\n:1\r\n:7\r\n:0\r\n:0\r\n:1000\r\n"
			}
			return reply
		})
		l := must(New(connect(t, Server{Addr: addr}), Quota{Limit: 7, Window: time.Minute}, Direct, OnFailure(FailError),
			Timeout(20*time.Second)))
		if err := l.Wait(background, "k"); err != nil || server.asked.Load() != 3 {
			t.Errorf("%v, asked %d times", err, server.asked.Load())
		}
	}
}

// What the policy granted to a caller that waits stays counted when the server's own grant of it comes too late.
func TestWhatThePolicyGrantedStaysCounted(t *testing.T) {
	callers := map[string]func(l *Limiter) (isGranted bool){
		"wait": func(l *Limiter) bool { return l.Wait(background, "k") == nil },
		"admit": func(l *Limiter) bool {
			return must(Admit(background, []Part{l.Request("k", 1)}, WaitFor(time.Hour))).Allowed
		},
	}
	var running sync.WaitGroup
	for name, caller := range callers {
		for _, byScript := range []bool{false, true} {
			for _, policy := range []FailurePolicy{FailAllow, FailLocal} {
				running.Go(func() {
					server := &denying{byScript: byScript, late: make(chan struct{})}
					client := connect(t, Server{Addr: fake(t, server.reply)})
					l := must(New(client, Quota{Limit: 100, Window: time.Minute}, Direct, OnFailure(policy),
						Timeout(2*time.Second)))
					if !caller(l) || server.asked.Load() != 2 {
						t.Errorf("%s, %v, %s: denied, or asked %d times", name, byScript, policy, server.asked.Load())
					}
					close(server.late)
					for client.pending.Load() > 0 {
						time.Sleep(2 * time.Millisecond)
					}
					server.mu.Lock()
					defer server.mu.Unlock()
					if len(server.back) > 0 {
						t.Errorf("%s, %v, %s: %v", name, byScript, policy, server.back)
					}
				})
			}
		}
	}
	running.Wait()
}

// gone is a context that is cancelled once isSo, and slow to say so.
type gone struct {
	context.Context
	isSo *atomic.Bool
}

func (g gone) Err() error {
	if g.isSo.Load() {
		return context.Canceled
	}
	return nil
}

func (g gone) Done() <-chan struct{} {
	time.Sleep(20 * time.Millisecond)
	done := make(chan struct{})
	if g.isSo.Load() {
		close(done)
	}
	return done
}

// Nobody else waits on a connection whose caller has gone, also where the reply is there when it goes: what was granted
// is given back there, and then it closes.
func TestNobodyGetsAConnectionThatEnds(t *testing.T) {
	server, isSo := &denying{}, new(atomic.Bool)
	client := connect(t, Server{Addr: fake(t, func(addr string, words []any) string {
		if words[0] == prefix+"ACQUIRE" && len(words) > 5 && words[5] != "0ms" {
			isSo.Store(true)
			return "*5\r\n:1\r\n:7\r\n:0\r\n:0\r\n:1000\r\n"
		}
		return server.reply(addr, words)
	})})
	l := must(New(client, Quota{Limit: 7, Window: time.Minute}, Direct, OnFailure(FailError), Timeout(20*time.Second)))
	cancelled := 0
	for range 100 {
		isSo.Store(false)
		err := l.Wait(gone{background, isSo}, key())
		if err == nil {
			continue
		}
		client.waits.mu.Lock()
		kept := len(client.waits.idle)
		client.waits.mu.Unlock()
		if !errors.Is(err, context.Canceled) || kept > 0 {
			t.Fatalf("%v, and %d kept", err, kept)
		}
		if cancelled++; cancelled == 10 {
			return
		}
	}
	t.Errorf("cancelled %d times", cancelled)
}
