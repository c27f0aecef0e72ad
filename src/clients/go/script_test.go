package swlimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// byBoth runs a test on a server with the module, and on one where the script decides.
func byBoth(t *testing.T, test func(t *testing.T, addr string)) {
	for _, name := range []string{"main", "bare"} {
		t.Run(name, func(t *testing.T) { test(t, address(t, name)) })
	}
}

// scriptFirst is a Client that asks the script first, though the server has the module.
func scriptFirst(t *testing.T, transport Server) *Client {
	t.Helper()
	client := connect(t, transport)
	cn := must(must(client.serverAt(transport)).place(background, now()+20*time.Second))
	<-cn.ready
	cn.adapt(func(d *dialect) { d.byScript = true })
	return client
}

// ask is the reply to another command.
func ask(t *testing.T, client *Client, words ...string) any {
	t.Helper()
	return must(client.ask(background, other(words[min(1, len(words)-1)], words...), asking{timeout: 20 * time.Second}))
}

func holding(t *testing.T, client *Client, limit int64, options ...Option) *Holds {
	t.Helper()
	options = append([]Option{Timeout(20 * time.Second), OnFailure(FailError)}, options...)
	return must(NewHolds(client, limit, time.Minute, options...))
}

func TestScriptDecidesTheSame(t *testing.T) {
	client := connect(t, Server{Addr: address(t, "bare")})
	l := limiter(t, client, 3)
	k := key()
	for want := range 5 {
		if d := must(l.Allow(background, k)); d.Allowed() != (want < 3) {
			t.Errorf("%d: %+v", want, d)
		}
	}
	if state := client.Servers()[0]; state.Backend != "script" {
		t.Errorf("%+v", state)
	}
	if n := must(l.Refund(background, k, 1)); n != 1 {
		t.Errorf("%d given back", n)
	}
	if d := must(l.AllowN(background, k, 1)); !d.Allowed() {
		t.Errorf("%+v", d)
	}
	ask(t, client, "SCRIPT", "FLUSH")
	if hold := must(holding(t, client, 1).TryAcquire(background, "after the server has lost it")); hold.Token == 0 {
		t.Errorf("%+v", hold)
	}
	ctx, cancel := context.WithTimeout(background, 5*time.Second)
	defer cancel()
	if err := l.WaitN(ctx, k, 3); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
}

// First come, first served: who has released is behind all that wait already.
func TestHoldsInLine(t *testing.T) {
	byBoth(t, func(t *testing.T, addr string) {
		client := connect(t, Server{Addr: addr})
		holds, k := holding(t, client, 1), key()
		first := must(holds.Acquire(background, k))
		var mu sync.Mutex
		var order []int
		var waiting sync.WaitGroup
		for i := range 10 {
			waiting.Go(func() {
				hold, err := holds.Acquire(background, k)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				hold.Release()
			})
			eventually(t, "one more waits", func() bool { return inLine(client, k) == i+1 })
		}
		first.Release()
		last := must(holds.Acquire(background, k))
		mu.Lock()
		before := len(order)
		mu.Unlock()
		last.Release()
		waiting.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; before != 10 || !reflect.DeepEqual(order, want) {
			t.Errorf("%d before who released, in order %v", before, order)
		}
		if n := inLine(client, k); n != 0 {
			t.Errorf("%d wait still", n)
		}
	})
}

func inLine(client *Client, key string) int {
	client.waits.mu.Lock()
	defer client.waits.mu.Unlock()
	return len(client.waits.lines[key])
}

// A caller that waits may go at any moment: nothing is held then, and the next has its turn.
func TestWaitsForHoldsAreCancelled(t *testing.T) {
	t.Parallel()
	byBoth(t, func(t *testing.T, addr string) {
		client := connect(t, Server{Addr: addr})
		holds, k := holding(t, client, 2), key()
		var waiting sync.WaitGroup
		var granted, most, cancelled atomic.Int64
		for range 40 {
			waiting.Go(func() {
				for range 5 {
					ctx, cancel := context.WithCancel(background)
					if rand.IntN(2) == 0 {
						time.AfterFunc(time.Duration(rand.IntN(10_000))*time.Microsecond, cancel)
					}
					hold, err := holds.Acquire(ctx, k)
					switch {
					case err == nil:
						if granted.Add(1) > 2 {
							most.Add(1)
						}
						granted.Add(-1)
						hold.Release()
					case errors.Is(err, context.Canceled):
						cancelled.Add(1)
					default:
						t.Error(err)
					}
					cancel()
				}
			})
		}
		waiting.Wait()
		if cancelled.Load() == 0 || most.Load() > 0 {
			t.Errorf("%d cancelled, %d times more than the limit", cancelled.Load(), most.Load())
		}
		eventually(t, "all is released", func() bool { return len(must(holds.Holders(background, k, 10))) == 0 })
		soon, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		kept := must(holding(t, client, 1).Acquire(background, "kept:"+k))
		if _, err := holding(t, client, 1).Acquire(soon, "kept:"+k); !errors.Is(err, ErrDenied) {
			t.Errorf("at the deadline: %v", err)
		}
		got := make(chan error)
		go func() { _, err := holding(t, client, 1).Acquire(background, "kept:"+k); got <- err }()
		eventually(t, "one waits", func() bool { return inLine(client, "kept:"+k) == 1 })
		client.Close()
		if err := <-got; !errors.Is(err, ErrClosed) && err != nil {
			t.Error(err)
		}
		if kept.Live() {
			t.Error("closed, and live")
		}
	})
}

// Without the module a wait is a poll; where the server announces changes, a release ends its pause.
func TestReleasesAreHeardOf(t *testing.T) {
	client := connect(t, Server{Addr: address(t, "bare")})
	l, k := limiter(t, client, 1), key()
	must(l.Allow(background, "rate:"+k))
	eventually(t, "tracking", func() bool {
		return must(l.Allow(background, "rate:"+k)).Source == FromCache
	})
	hold := must(holding(t, connect(t, Server{Addr: address(t, "bare")}), 1).TryAcquire(background, k))
	got := make(chan *Hold)
	go func() { got <- must(holding(t, client, 1).Acquire(background, k)) }()
	watched := func() chan struct{} {
		client.waits.mu.Lock()
		defer client.waits.mu.Unlock()
		return client.waits.changes[k]
	}
	eventually(t, "the key is watched", func() bool { return watched() != nil })
	changed := watched()
	time.Sleep(100 * time.Millisecond) // it is asked again meanwhile, and denied
	if watched() != changed {
		t.Error("watched again without a change")
	}
	hold.Release()
	<-changed
	(<-got).Release()
	eventually(t, "nothing is watched", func() bool { return watched() == nil })
}

// scenario uses keys of each kind, by turns over two connections, as a fleet does of which half knows of the module.
func scenario(t *testing.T, k string, conns ...*Client) {
	t.Helper()
	at := 0
	next := func() *Client { at++; return conns[at%len(conns)] }
	rates := func() *Limiter { return limiter(t, next(), 10, Prefix("rate:"), Direct) }
	budget := func() *Budget {
		return must(NewBudget(next(), 100, Yearly(time.January, 1), nil, Timeout(20*time.Second), OnFailure(FailError),
			Prefix("budget:")))
	}
	for left := int64(9); left >= 4; left-- {
		if n, _ := must(rates().Allow(background, k)).Remaining(); n != left {
			t.Errorf("%d of 10 are left, not %d", n, left)
		}
	}
	for left := int64(90); left >= 50; left -= 10 {
		if n, _ := must(budget().AllowN(background, k, 10)).Remaining(); n != left {
			t.Errorf("%d of 100 are left, not %d", n, left)
		}
	}
	two := must(AllowAll(background, limiter(t, conns[0], 10, Prefix("rate:")).Request(k, 1),
		limiter(t, conns[0], 10, Prefix("second:")).Request(k, 1)))
	if n, _ := two.Each[0].Remaining(); !two.Allowed || n != 3 {
		t.Errorf("%+v", two)
	}
	var held []*Hold
	for range 4 {
		held = append(held, must(holding(t, next(), 4).TryAcquire(background, "held:"+k)))
	}
	if _, err := holding(t, next(), 4).TryAcquire(background, "held:"+k); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	for i, hold := range held {
		if i > 0 && hold.Token <= held[i-1].Token {
			t.Error("the tokens do not grow")
		}
		hold.Release()
	}
	if n := len(must(holding(t, next(), 4).Holders(background, "held:"+k, 10))); n != 0 {
		t.Errorf("%d are held still", n)
	}
	for left := int64(3); left >= 2; left-- {
		client := next()
		a := must(Admit(background, []Part{limiter(t, client, 10, Prefix("rate:")).Request(k, 2),
			holding(t, client, 1).Request("admitted:"+k, 1)}))
		if n, _ := a.Each[0].Remaining(); !a.Allowed || n != left-2 {
			t.Errorf("%d left, %+v", left, a)
		}
		if changes := must(a.Settle(background, 1)); len(changes) != 1 || changes[0] != -1 {
			t.Errorf("%v", changes)
		}
	}
	if n, _ := must(rates().Peek(background, k)).Remaining(); n != 1 {
		t.Errorf("%d are left", n)
	}
}

func TestTakesOver(t *testing.T) {
	main := Server{Addr: address(t, "main")}
	scenario(t, key(), connect(t, Server{Addr: address(t, "bare")}))
	module, script := connect(t, main), scriptFirst(t, main)
	scenario(t, key(), module, script)
	if n := limiter(t, script, 1).Statistics().TakenOver; n != 0 {
		t.Errorf("it met keys of the module's, and took over %d", n)
	}
	if state := script.Servers()[0]; state.Backend != "module" {
		t.Errorf("%+v", state)
	}
	// Keys of the script's, and either client asks first.
	for _, first := range []*Client{module, scriptFirst(t, main)} {
		k := key()
		script := scriptFirst(t, main)
		l := limiter(t, script, 5, Direct)
		must(l.AllowN(background, k, 3))
		hold := must(holding(t, script, 1).TryAcquire(background, "held:"+k))
		must(limiter(t, first, 5, Direct).Peek(background, k)) // the script's by the script
		before := limiter(t, module, 1).Statistics().TakenOver
		if n, _ := must(limiter(t, module, 5, Direct).Peek(background, k)).Remaining(); n != 2 {
			t.Errorf("%d left", n)
		}
		if all := must(holding(t, module, 1).Holders(background, "held:"+k, 10)); len(all) != 1 || all[0].ID != hold.ID ||
			all[0].Token != hold.Token {
			t.Errorf("%+v", all)
		}
		if n := limiter(t, module, 1).Statistics().TakenOver - before; n == 0 || n > 2 {
			t.Errorf("%d taken over", n)
		}
		hold.Release() // by who believes that the script has it
		if n := must(l.Refund(background, k, 5)); n != 3 {
			t.Errorf("%d given back", n)
		}
		if all := must(holding(t, module, 1).Holders(background, "held:"+k, 10)); len(all) != 0 {
			t.Errorf("%+v", all)
		}
	}
}

// Who waits in the server's queue takes a key over that a client of the script has made.
func TestWaitsWhereTheScriptWritesStill(t *testing.T) {
	t.Parallel()
	main := Server{Addr: address(t, "main")}
	module, k := connect(t, main), key()
	w := &module.waits
	must(holding(t, scriptFirst(t, main), 1).TryAcquire(background, k))
	left := func() time.Duration { return 20 * time.Second }
	raw, err := w.ask(background, k, left, func(ms int64) command {
		return holdCommand(k, 1, 60_000, freshID(), 1, ms)
	}, holding(t, module, 1).settings)
	if raw != nil || err != nil {
		t.Errorf("it is not asked again: %v, %v", raw, err)
	}
	soon, cancel := context.WithTimeout(background, time.Second)
	defer cancel()
	if _, err := holding(t, module, 1).Acquire(soon, k); !errors.Is(err, ErrDenied) {
		t.Error(err)
	}
	// A policy decides where no server was found in time.
	nowhere := connect(t, &Cluster{Addrs: []string{"127.0.0.1:1"}})
	allowed := must(NewHolds(nowhere, 1, time.Minute, OnFailure(FailAllow)))
	if hold := must(allowed.TryAcquire(background, k)); hold.Source != FromFailure {
		t.Errorf("%+v", hold)
	}
}

// What is given back for a caller that has gone finds the key with the module.
func TestGivesBackWhatWasTakenOver(t *testing.T) {
	main := Server{Addr: address(t, "main")}
	script, module := scriptFirst(t, main), connect(t, main)
	k := key()
	cmd := allowCommand(k, &demand{quota{limit: 10, window: 60_000, resolution: 5000}, 4, false}, 0)
	asked := &call{command: cmd, timeout: 20 * time.Second, done: make(chan struct{})}
	asked.owner = must(script.serverAt(main))
	must(asked.owner.place(background, now()+20*time.Second)).add(asked)
	<-asked.done
	if n, _ := must(limiter(t, module, 10).Peek(background, k)).Remaining(); n != 6 {
		t.Errorf("%d left", n)
	}
	script.late(asked, nil)
	eventually(t, "given back", func() bool {
		n, _ := must(limiter(t, module, 10).Peek(background, k)).Remaining()
		return n == 10
	})
}

func TestWhatIsRefusedStays(t *testing.T) {
	main := Server{Addr: address(t, "main")}
	module, script := connect(t, main), scriptFirst(t, main)
	k := key()
	ask(t, module, "SET", k, "somebody's")
	for _, client := range []*Client{module, script} {
		var refused RefusedError
		if _, err := limiter(t, client, 1).Allow(background, k); !errors.As(err, &refused) ||
			!strings.HasPrefix(err.Error(), "WRONGTYPE ") {
			t.Error(err)
		}
	}
	if got := ask(t, module, "GET", k); got != "somebody's" {
		t.Errorf("%q", got)
	}
	if got := limiter(t, module, 1).Statistics().TakenOver; got != 0 {
		t.Errorf("%d taken over", got)
	}
	// A server without the module: the type is wrong still, and nobody says that the module is missing.
	bare := connect(t, Server{Addr: address(t, "bare")})
	ask(t, bare, "SET", k, "somebody's")
	if _, err := limiter(t, bare, 1).Allow(background, k); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE ") {
		t.Error(err)
	}
	// Without a right.
	k = key()
	l := limiter(t, scriptFirst(t, main), 5, Direct)
	must(l.AllowN(background, k, 3))
	before := ask(t, module, "DUMP", k)
	user := key()
	ask(t, module, "ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-swlimit.apply")
	defer ask(t, module, "ACL", "DELUSER", user)
	unable := main
	unable.Username, unable.Password = user, "secret"
	var refused RefusedError
	_, err := limiter(t, connect(t, unable), 5).Allow(background, k)
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "run this command") &&
		!strings.Contains(err.Error(), "permission") {
		t.Error(err)
	}
	if after := ask(t, module, "DUMP", k); after != before {
		t.Error("the key is another")
	}
	if n, _ := must(l.Peek(background, k)).Remaining(); n != 2 {
		t.Errorf("%d left", n)
	}
}

// The module comes while requests are under way: none notices.
func TestModuleIsLoadedMeanwhile(t *testing.T) {
	late := Server{Addr: address(t, "late")}
	conns := []*Client{connect(t, late), connect(t, late)}
	k := key()
	var granted, tokens atomic.Int64
	var over atomic.Bool
	var running sync.WaitGroup
	for i := range 20 {
		running.Go(func() {
			client := conns[i%len(conns)]
			l, holds := limiter(t, client, 100_000), holding(t, client, 2)
			for n := 0; n < 30 || !over.Load(); n++ {
				d, err := l.AllowN(background, k, 2)
				if err == nil {
					granted.Add(d.Granted)
					_, err = l.Refund(background, k, 1)
					granted.Add(-1)
				}
				if err == nil {
					var hold *Hold
					if hold, err = holds.Acquire(background, "held:"+k); err == nil {
						tokens.Add(1)
						hold.Release()
					}
				}
				if err == nil {
					_, err = l.Allow(background, fmt.Sprintf("%s:%d", k, i))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	eventually(t, "the script has held", func() bool { return tokens.Load() > 50 })
	ask(t, conns[0], "MODULE", "LOAD", os.Getenv("SWLIMIT_MODULE"))
	taken := func() (n int64) {
		for _, client := range conns {
			n += client.takenOver.Load()
		}
		return n
	}
	was := tokens.Load()
	eventually(t, "the module has held", func() bool {
		must(limiter(t, connect(t, late), 100_000).Peek(background, k))
		return tokens.Load() > was+50
	})
	over.Store(true)
	running.Wait()
	module := connect(t, late)
	left, _ := must(limiter(t, module, 100_000).Peek(background, k)).Remaining()
	if counted := 100_000 - left; counted != granted.Load() {
		t.Errorf("%d counted, %d granted", counted, granted.Load())
	}
	t.Logf("%d grants, %d holds, %d keys taken over by those that waited", granted.Load(), tokens.Load(), taken())
	eventually(t, "all is released", func() bool {
		return len(must(holding(t, module, 2).Holders(background, "held:"+k, 10))) == 0
	})
	for _, client := range conns {
		must(limiter(t, client, 100_000, Direct).Peek(background, k))
		if state := client.Servers()[0]; state.Backend != "module" {
			t.Errorf("%+v", state)
		}
	}
}
