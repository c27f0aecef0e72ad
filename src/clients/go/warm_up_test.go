package swlimit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWarmUp(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		for _, mode := range []Mode{Direct, Cached} {
			if client == nil {
				mode = Local
			}
			l := limiter(t, client, 90, WarmUp(time.Hour), mode)
			k := key()
			if d := must(l.AllowN(background, k, 91)); d.RetryAfter != Never {
				t.Errorf("%s: it never fits: %+v", mode, d)
			}
			if d := must(l.AllowAtMost(background, k, 90)); d.Granted != 30 || d.Limit != 30 { // a third of it
				t.Errorf("%s: %+v", mode, d)
			}
			for _, n := range []int64{1, 60} {
				if d := must(l.AllowN(background, k, n)); d.Allowed() || d.Limit != 30 || d.RetryAfter <= 0 || d.Never() {
					t.Errorf("%s: it fits later: %+v", mode, d)
				}
			}
			if d := must(l.PeekN(background, k, 60)); d.Allowed() || d.Limit != 30 || d.RetryAfter <= 0 || d.Never() {
				t.Errorf("%s: %+v", mode, d)
			}
			first := key()
			if d := must(l.PeekN(background, first, 60)); d.Granted != 60 || d.Limit != 60 {
				t.Errorf("%s: after idleness the first request is granted: %+v", mode, d)
			}
			if d := must(l.Record(background, first, 60)); d.Granted != 60 || d.Limit != 60 {
				t.Errorf("%s: %+v", mode, d)
			}
			late := limiter(t, client, 90, WarmUp(time.Hour), mode)
			if client == nil {
				late = l
			}
			if d := must(late.Allow(background, first)); d.Allowed() || d.Limit != 30 {
				t.Errorf("%s: a process that joins late has the same limit: %+v", mode, d)
			}
			colder := limiter(t, client, 90, WarmUp(time.Hour), Cold(9), mode)
			if d := must(colder.AllowAtMost(background, key(), 90)); d.Granted != 10 {
				t.Errorf("%s: %+v", mode, d)
			}
			if err := l.WaitN(background, key(), 60); err != nil {
				t.Errorf("%s: %v", mode, err)
			}
			soon, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			if err := l.Wait(soon, k); !errors.Is(err, ErrDenied) {
				t.Errorf("%s: %v", mode, err)
			}
			blocks := limiter(t, client, 90, WarmUp(time.Hour), BlockFor(2*time.Hour), mode)
			if client == nil {
				must(blocks.AllowAtMost(background, k, 90))
			}
			if d := must(blocks.Allow(background, k)); d.Allowed() || d.Limit != 30 {
				t.Errorf("%s: %+v", mode, d)
			}
			if d := must(blocks.Peek(background, k)); d.RetryAfter < time.Hour {
				t.Errorf("%s: it is not blocked: %+v", mode, d)
			}
		}
	})
}

func TestSeveralWarmUp(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		mode := Mode(direct(client))
		rising := limiter(t, client, 90, WarmUp(time.Hour), Cold(9), Prefix("{k}rising:"), mode)
		whole := limiter(t, client, 90, Prefix("{k}whole:"), mode)
		holds := must(NewHolds(client, 90, time.Minute, Prefix("{k}held:")))
		together := map[string]func(k string, n int64) (bool, []Decision){
			"AllowAll": func(k string, n int64) (bool, []Decision) {
				d := must(AllowAll(background, rising.Request(k, n), whole.Request(k, n)))
				return d.Allowed, d.Each
			},
			"Admit": func(k string, n int64) (bool, []Decision) {
				a := must(Admit(background, []Part{rising.Request(k, n), whole.Request(k, n)}))
				return a.Allowed, a.Each
			},
			"Admit with a hold": func(k string, n int64) (bool, []Decision) {
				a := must(Admit(background, []Part{rising.Request(k, n), whole.Request(k, n), holds.Request(k, n)}))
				a.Release()
				return a.Allowed, a.Each
			},
		}
		for name, decide := range together {
			k := key()
			if allowed, each := decide(k, 10); !allowed || each[0].Limit != 10 || each[1].Limit != 90 {
				t.Errorf("%s: %+v", name, each)
			}
			for _, n := range []int64{1, 60} {
				if allowed, each := decide(k, n); allowed || each[0].Limit != 10 || each[0].RetryAfter <= 0 || each[0].Never() {
					t.Errorf("%s: %+v", name, each)
				}
			}
			if allowed, each := decide(k, 91); allowed || !each[0].Never() {
				t.Errorf("%s: %+v", name, each)
			}
		}
		limits := must(NewLimits(client, "90/second; 900/minute", WarmUp(time.Hour), mode, Timeout(20*time.Second)))
		if d := must(limits.AllowN(background, key(), 60)); !d.Allowed || d.Each[0].Limit != 60 || d.Each[1].Limit != 300 {
			t.Errorf("%+v", d)
		}
	})
}

// While a limit rises, retry_after is right to the millisecond, and no span of a window grants more than the
// limit at its end, except for the first request.
func TestRisingLimits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 51))
		resolution := 1 + random.Int64N(50)
		window := resolution * (1 + random.Int64N(6))
		q := quota{1 + random.Int64N(40), window, resolution, random.IntN(2) == 0,
			warmUp{window * (10 + random.Int64N(10)), 2 + random.Int64N(8)}}
		var e entry
		type grant struct{ at, units int64 }
		var granted []grant
		for at := 1_000_000 + random.Int64N(1000); at < 1_003_000; at += 1 + random.Int64N(1+window/4) {
			d := demand{q, 1 + random.Int64N(q.limit), random.IntN(4) == 0}
			retry := must(e.peek(&d, at)).retryAfter
			if r := must(e.peek(&d, at+retry)); r.granted == 0 {
				t.Fatalf("%d: %+v: denied %d ms after %d: %+v", seed, d, retry, at, r)
			}
			if retry > 0 && must(e.peek(&d, at+retry-1)).granted > 0 {
				t.Fatalf("%d: %+v: granted before %d ms after %d", seed, d, retry, at)
			}
			isIdle := must(e.peek(&d, at)).resetAfter == 0
			r := must(e.allow(&d, at, 0))
			if granted = append(granted, grant{at, r.granted}); isIdle {
				granted = nil
			}
			span, used := window, int64(0)
			if !q.strict {
				span -= resolution
			}
			for _, each := range granted {
				if each.at > at-span {
					used += each.units
				}
			}
			if used > r.limit {
				t.Fatalf("%d: %d of %d at %d", seed, used, r.limit, at)
			}
		}
	}
}

// In mode eventual a key begins with its share of the cold limit, and then has what the server says.
func TestEventualWarmUp(t *testing.T) {
	byBoth(t, func(t *testing.T, addr string) {
		client := connect(t, Server{Addr: addr})
		l := limiter(t, client, 9000, Eventual, WarmUp(time.Hour), SyncInterval(10*time.Millisecond))
		k := key()
		if d := must(l.AllowAtMost(background, k, 9000)); d.Granted != 300 || d.Limit != 3000 {
			t.Errorf("%+v", d)
		}
		eventually(t, "the server has said what remains", func() bool {
			d := must(l.AllowAtMost(background, k, 9000))
			return d.Limit == 3000 && d.ResetAfter > 0
		})
		idle := key()
		eventually(t, "the first request is granted whatever it costs", func() bool {
			return must(l.AllowN(background, idle, 6000)).Allowed()
		})
		if d := must(l.AllowN(background, idle, 9001)); !d.Never() {
			t.Errorf("%+v", d)
		}
		eventually(t, "it is counted", func() bool {
			d := must(limiter(t, client, 9000, WarmUp(time.Hour), Direct).Peek(background, idle))
			return !d.Allowed() && d.Limit == 3000
		})
	})
}

// In mode eventual usage beyond the limit begins the block.
func TestEventualBlocks(t *testing.T) {
	byBoth(t, func(t *testing.T, addr string) {
		client, k := connect(t, Server{Addr: addr}), key()
		l := limiter(t, client, 1, Eventual, BlockFor(time.Hour), SyncInterval(10*time.Millisecond))
		must(l.Record(background, k, 2))
		eventually(t, "it is blocked", func() bool {
			return must(limiter(t, client, 100, Direct).Peek(background, k)).RetryAfter > 30*time.Minute
		})
	})
}

// A module without WARMUP takes the word for another option, or for the limit of the next key.
func TestModuleWithoutWarmUp(t *testing.T) {
	addr := fake(t, func(_ string, words []any) string {
		at := slices.Index(words, any("WARMUP"))
		switch name, _ := words[0].(string); {
		case !strings.HasPrefix(name, "SWLIMIT."):
			return noReply
		case len(words) == 1:
			return "-ERR wrong number of arguments\r\n"
		case name == "SWLIMIT.ADMIT":
			return "-ERR unknown command 'SWLIMIT.ADMIT'\r\n"
		case name == "SWLIMIT.MALLOW" && at < len(words)-2:
			return "-ERR limit must be an integer between 0 and 9007199254740991\r\n"
		}
		return "-ERR syntax error near 'WARMUP'\r\n"
	})
	client := connect(t, Server{Addr: addr})
	l := limiter(t, client, 90, WarmUp(time.Hour), OnFailure(FailAllow))
	plain := limiter(t, client, 90)
	for i, err := range []error{
		second(l.Allow(background, "k")), second(l.Peek(background, "k")), second(l.Record(background, "k", 1)),
		second(AllowAll(background, plain.Request("k", 1), l.Request("l", 1))),
		second(AllowAll(background, l.Request("k", 1), plain.Request("l", 1))),
	} {
		if !errors.Is(err, ErrModuleMissing) || err.Error() != "swlimit: the server's module is too old for WARMUP: load a newer one" {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := second(Admit(background, []Part{l.Request("k", 1)})); !errors.Is(err, ErrModuleMissing) {
		t.Error(err)
	}
}

// What another word makes a module refuse says nothing of its age.
func TestModuleThatRefusesAnotherWord(t *testing.T) {
	addr := fake(t, func(_ string, words []any) string {
		if name, _ := words[0].(string); !strings.HasPrefix(name, "SWLIMIT.") {
			return noReply
		}
		return "-ERR syntax error near 'STRICT'\r\n"
	})
	l := limiter(t, connect(t, Server{Addr: addr}), 90, WarmUp(time.Hour))
	if err := second(l.Allow(background, "k")); err != RefusedError("ERR syntax error near 'STRICT'") {
		t.Error(err)
	}
}

func TestWrongWarmUps(t *testing.T) {
	for want, options := range map[string][]Option{
		"cold needs warm_up": {Cold(3)}, "warm_up must be at least ten times the window": {WarmUp(9 * time.Minute)},
		"warm_up must be whole milliseconds from 1 ms to 3650 days, not 1h0m0.000000001s": {WarmUp(time.Hour + 1)},
		"cold must be an integer between 2 and 1000":                                      {WarmUp(time.Hour), Cold(1)},
	} {
		err := second(New(nil, Quota{Limit: 90, Window: time.Minute}, options...))
		if err == nil || err.Error() != ErrArgument.Error()+": "+want {
			t.Errorf("%v instead of %s", err, want)
		}
	}
}
