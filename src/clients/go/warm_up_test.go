package swlimit

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWarmUpVectors(t *testing.T) {
	type given struct {
		Period int64 `json:"warm_up"`
		Cold   float64
		Limit  int64
		Age    int64 `json:"t"`
		Used   int64
		Cost   int64
		After  int64 `json:"retry_after"`
		Step   int64
		Next   *int64
		Limits []int64
		Window int64
		Error  string
	}
	var cases struct {
		Limits, Steps, Shown, Waits, Refused []given
		Traces                               []struct {
			given
			Name   string
			Quiet  int64
			Events []struct {
				Process, Now int64
				Ask          *int64
				Fed          json.RawMessage
				Look         *bool
				State        [3]int64
			}
		}
	}
	vectors(t, "warm_up", &cases)
	of := func(g given) *warmUp { return &warmUp{g.Period, g.Cold} }
	for _, c := range cases.Limits {
		for step, want := range c.Limits {
			if got := of(c).limit(c.Limit, int64(step)); got != want {
				t.Errorf("%+v: step %d: %d", c, step, got)
			}
		}
	}
	for _, c := range cases.Steps {
		step := of(c).step(c.Age)
		if step != c.Step || (c.Next == nil) != (step == warmUpSteps) ||
			c.Next != nil && *c.Next != of(c).begins(step+1)-c.Age {
			t.Errorf("%+v: %d", c, step)
		}
	}
	for _, c := range cases.Shown {
		if got := of(c).shown(c.Limit, c.Used); got != c.Age {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range cases.Waits {
		if got := of(c).wait(c.Age, c.Limit, c.Cost); got != c.After {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range cases.Refused {
		_, err := New(nil, Quota{Limit: 1, Window: duration(c.Window)}, WarmUp(duration(c.Period)), Cold(c.Cold))
		if (err == nil) != (c.Error == "") || err != nil && err.Error() != ErrArgument.Error()+": "+c.Error {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, trace := range cases.Traces {
		w, known := of(trace.given), map[int64]*warmth{}
		for i, e := range trace.Events {
			state := known[e.Process]
			switch {
			case e.Ask != nil:
				if got := w.ask(state, e.Now, trace.Limit, trace.Quiet); got != *e.Ask {
					t.Errorf("%s: event %d: ask %d instead of %d", trace.Name, i, got, *e.Ask)
				}
				continue
			case e.Look != nil:
				if got := w.look(state); got != *e.Look {
					t.Errorf("%s: event %d: look %v", trace.Name, i, got)
				}
			default:
				var fed *[3]int64
				if err := json.Unmarshal(e.Fed, &fed); err != nil {
					t.Fatal(err)
				}
				var r *reply
				if fed != nil {
					r = &reply{limit: fed[0], granted: fed[1], remaining: fed[2]}
				}
				next := w.feed(state, e.Now, trace.Limit, r)
				state, known[e.Process] = &next, &next
			}
			if got := [3]int64{state.age, state.at, state.looked}; got != e.State {
				t.Errorf("%s: event %d: %v instead of %v", trace.Name, i, got, e.State)
			}
		}
	}
	if len(cases.Limits) < 20 || len(cases.Shown) < 20 || len(cases.Traces) < 3 {
		t.Error("too few cases")
	}
}

// rewarm makes a key so old, as far as a limiter knows.
func rewarm(l *Limiter, key string, age time.Duration) {
	l.warming.mu.Lock()
	defer l.warming.mu.Unlock()
	known, _ := l.warming.known.get(key)
	known.age = age.Milliseconds()
}

func TestWarmUp(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		for _, mode := range []Mode{Direct, Cached} {
			if client == nil {
				mode = Local
			}
			l := limiter(t, client, 90, WarmUp(time.Hour), mode)
			k := key()
			granted := func(n int64) (all int64) {
				for range n {
					all += must(l.Allow(background, k)).Granted
				}
				return all
			}
			if n := granted(40); n != 30 { // a third of it
				t.Errorf("%s: %d are granted", mode, n)
			}
			if d := must(l.Allow(background, k)); d.Allowed() || d.Limit != 30 || d.RetryAfter <= 0 {
				t.Errorf("%s: %+v", mode, d)
			}
			if d := must(l.AllowN(background, k, 60)); d.Allowed() || d.RetryAfter <= 0 || d.RetryAfter == Never {
				t.Errorf("%s: it fits later: %+v", mode, d)
			}
			if d := must(l.AllowN(background, k, 91)); d.RetryAfter != Never {
				t.Errorf("%s: it never fits: %+v", mode, d)
			}
			if d := must(l.PeekN(background, k, 1)); d.Allowed() || d.Limit != 30 {
				t.Errorf("%s: %+v", mode, d)
			}
			if d := must(l.PeekN(background, k, 60)); d.RetryAfter <= 0 || d.RetryAfter == Never {
				t.Errorf("%s: %+v", mode, d)
			}
			if d := must(l.Record(background, key(), 60)); d.RetryAfter <= 0 || d.RetryAfter == Never {
				t.Errorf("%s: %+v", mode, d)
			}
			rewarm(l, k, 50*time.Minute)
			if d := must(l.Peek(background, k)); d.Limit != 55 || !d.Allowed() {
				t.Errorf("%s: %+v", mode, d)
			}
			rewarm(l, k, time.Hour)
			if n := granted(70); n != 60 {
				t.Errorf("%s: %d are granted", mode, n)
			}
			if d := must(l.Record(background, k, 1)); d.Limit != 90 {
				t.Errorf("%s: %+v", mode, d)
			}
			// A process that joins late sees how much is counted.
			if client != nil {
				late := limiter(t, client, 90, WarmUp(time.Hour), mode)
				must(l.Refund(background, k, 11))
				if d := must(late.Allow(background, k)); d.Limit != 76 { // of which 80 are used
					t.Errorf("%s: %+v", mode, d)
				}
				if n := late.Statistics(); n.Server.all()+n.Cache.all() != 1 {
					t.Errorf("one decision counts once: %+v", n)
				}
			}
			if err := l.Wait(background, k); err == nil || !strings.HasSuffix(err.Error(), "warm_up does not go with acquire") {
				t.Error(err)
			}
			if _, err := Admit(background, []Part{l.Request(k, 1)}); err == nil ||
				!strings.HasSuffix(err.Error(), "warm_up does not go with admit") {
				t.Error(err)
			}
		}
	})
}

func TestSeveralWarmUp(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		first := limiter(t, client, 90, WarmUp(time.Hour), Prefix("{k}first:"), Mode(direct(client)))
		second := limiter(t, client, 90, Prefix("{k}second:"), Mode(direct(client)))
		k := key()
		all := func(n int64) Decisions {
			return must(AllowAll(background, first.Request(k, n), second.Request(k, n)))
		}
		if d := all(30); !d.Allowed || d.Each[0].Limit != 30 || d.Each[1].Limit != 90 {
			t.Errorf("%+v", d)
		}
		if d := all(1); d.Allowed || d.Each[0].Limit != 30 || d.RetryAfter() <= 0 {
			t.Errorf("%+v", d)
		}
		if d := all(60); d.Allowed || d.RetryAfter() == Never {
			t.Errorf("it fits later: %+v", d)
		}
		if d := all(91); d.RetryAfter() != Never {
			t.Errorf("it never fits: %+v", d)
		}
		rewarm(first, k, 50*time.Minute)
		if d := all(25); !d.Allowed || d.Each[0].Limit != 55 {
			t.Errorf("%+v", d)
		}
		if client != nil { // a process that joins late sees how much is counted
			first = limiter(t, client, 90, WarmUp(time.Hour), Prefix("{k}first:"), Direct)
			if d := all(1); d.Each[0].Limit != 51 || first.Statistics().Server.all() != 1 {
				t.Errorf("%+v", d)
			}
		}
	})
}

// A server that answers a denial, and loses the connection when it is asked again: the denial stands.
func TestWarmingDenialsStand(t *testing.T) {
	addr := fake(t, func(_ string, words []any) string {
		denied := "*5\r\n:0\r\n:30\r\n:0\r\n:1000\r\n:1000\r\n"
		switch {
		case words[0] == "SWLIMIT.PEEK":
			return "*5\r\n:0\r\n:90\r\n:0\r\n:1000\r\n:1000\r\n"
		case words[0] != "SWLIMIT.ALLOW" && words[0] != "SWLIMIT.MALLOW":
			return noReply
		case len(words) == 1:
			return "-ERR wrong number of arguments\r\n"
		case slices.Contains(words, "90"):
			return "broken\r\n"
		case words[0] == "SWLIMIT.MALLOW":
			return "*2\r\n:0\r\n" + denied
		}
		return denied
	})
	for _, policy := range []FailurePolicy{FailError, FailAllow, FailLocal} {
		fresh := func() *Limiter {
			return must(New(connect(t, Server{Addr: addr}), Quota{Limit: 90, Window: time.Minute}, WarmUp(time.Hour),
				Direct, OnFailure(policy), Timeout(20*time.Second)))
		}
		l := fresh()
		if d, err := l.Allow(background, "k"); err != nil || d.Allowed() || d.Source != FromServer || d.Limit != 30 {
			t.Errorf("%v: %+v, %v", policy, d, err)
		}
		if n := l.Statistics(); n != (Statistics{Server: Count{Denied: 1}}) {
			t.Errorf("%v: %+v", policy, n)
		}
		several := fresh()
		if d, err := AllowAll(background, several.Request("k", 1)); err != nil || d.Allowed || d.Each[0].Limit != 30 {
			t.Errorf("%v: %+v, %v", policy, d, err)
		}
		for _, l := range []*Limiter{l, several} {
			e, held := l.windows.lock("k")
			if r := must(e.peek(&demand{l.quota, 1, false}, clock())); r.remaining != 90 {
				t.Errorf("%v: this process has counted: %+v", policy, r)
			}
			held.mu.Unlock()
		}
	}
}

// Without an answer the policy decides with the limit that was asked for.
func TestWarmUpWithoutAnAnswer(t *testing.T) {
	client := connect(t, Server{Addr: "127.0.0.1:1"})
	l := must(New(client, Quota{Limit: 90, Window: time.Minute}, WarmUp(time.Hour), OnFailure(FailLocal)))
	for want := range int64(4) {
		if d := must(l.Allow(background, "k")); d.Allowed() != (want < 3) || d.Limit != 3 || d.Source != FromFailure {
			t.Errorf("%+v", d)
		}
	}
	if d := must(l.PeekN(background, "k", 5)); d.Allowed() || d.RetryAfter != Never {
		t.Errorf("the share of the limit never grants it: %+v", d)
	}
	for _, options := range [][]Option{{Cold(2)}, {WarmUp(time.Hour), BlockFor(time.Second)}, {WarmUp(time.Hour), Cold(1)},
		{WarmUp(0)}} {
		if _, err := New(client, Quota{Limit: 90, Window: time.Minute}, options...); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	}
	if _, err := l.With(Quota{Limit: 90, Window: time.Hour}); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if _, err := NewHolds(client, 1, time.Minute, WarmUp(time.Hour)); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if _, err := NewBudget(client, 1, Daily(), nil, WarmUp(time.Hour)); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	few := must(New(nil, Quota{Limit: 90, Window: time.Minute}, WarmUp(time.Hour), MaxKeys(3)))
	for range 10 {
		must(few.Allow(background, key()))
	}
	if n := few.warming.known.len(); n != 3 {
		t.Errorf("%d keys are known", n)
	}
}
