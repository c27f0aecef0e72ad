package swlimittest

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

var ten = swlimit.Quota{Limit: 10, Window: time.Minute}

func TestDeniesOnDemand(t *testing.T) {
	ctx, fake := t.Context(), New(ten)
	for range 30 {
		if d := must(fake.Allow(ctx, "k")); !d.Allowed() || d.Limit != 10 {
			t.Fatalf("%+v", d)
		}
	}
	fake.Deny(30 * time.Second)
	fake.Grant("granted")
	fake.Deny(swlimit.Never, "never")
	for key, want := range map[string]time.Duration{"k": 30 * time.Second, "granted": 0, "never": swlimit.Never} {
		for method, ask := range map[string]func() (swlimit.Decision, error){
			"allow":   func() (swlimit.Decision, error) { return fake.Allow(ctx, key) },
			"at most": func() (swlimit.Decision, error) { return fake.AllowAtMost(ctx, key, 9) },
			"peek":    func() (swlimit.Decision, error) { return fake.Peek(ctx, key) },
			"record":  func() (swlimit.Decision, error) { return fake.Record(ctx, key, 3) },
		} {
			if d := must(ask()); d.RetryAfter != want || d.Allowed() != (want == 0) || d.Never() != (want == swlimit.Never) {
				t.Errorf("%s of %s: %+v", method, key, d)
			}
		}
		if err := fake.Wait(ctx, key); errors.Is(err, swlimit.ErrDenied) != (want > 0) {
			t.Errorf("%s: %v", key, err)
		}
	}
	fake.Grant()
	fake.DenyNext(2, time.Second)
	for i, want := range []bool{false, false, true} {
		must(fake.Refund(ctx, "k", 1)) // which decides nothing
		if d := must(fake.Allow(ctx, "never")); d.Allowed() != want {
			t.Errorf("%d: %+v", i, d)
		}
	}
	if err := fake.Wait(ctx, "k"); err != nil {
		t.Error(err)
	}
}

func TestDeniesWhateverTheTime(t *testing.T) {
	ctx, fake := t.Context(), New(ten)
	for retryAfter, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, -time.Second: time.Millisecond, swlimit.Unknown: time.Millisecond,
		1: time.Millisecond, swlimit.Never - 1: swlimit.Never, swlimit.Never - time.Millisecond + 1: swlimit.Never,
	} {
		fake.Deny(retryAfter)
		fake.Deny(retryAfter, "k")
		for _, key := range []string{"k", "l"} {
			if d := must(fake.Allow(ctx, key)); d.Allowed() || d.RetryAfter != want {
				t.Errorf("%v: %+v", retryAfter, d)
			}
		}
		fake.Grant()
		fake.DenyNext(1, retryAfter)
		if d := must(fake.Allow(ctx, "k")); d.Allowed() || d.RetryAfter != want {
			t.Errorf("%v: %+v", retryAfter, d)
		}
	}
}

// Denying all requests grants none in between.
func TestDeniesAtOnce(t *testing.T) {
	ctx, fake := t.Context(), New(ten)
	fake.Deny(time.Second)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 20_000 {
			fake.Deny(time.Second)
		}
	}()
	for {
		select {
		case <-over:
			return
		default:
			if d := must(fake.Allow(ctx, "k")); d.Allowed() {
				t.Errorf("%+v", d)
				<-over
				return
			}
		}
	}
}

func TestRecordsCalls(t *testing.T) {
	ctx, fake := t.Context(), New(swlimit.Quota{}, swlimit.Prefix("p:"))
	must(fake.AllowN(ctx, "k", 3))
	must(fake.Peek(ctx, "k"))
	must(fake.Record(ctx, "k", 4))
	_ = fake.WaitN(ctx, "k", 5)
	must(fake.Refund(ctx, "k", 6))
	must(fake.Block(ctx, "k", time.Minute))
	must(fake.Unblock(ctx, "k"))
	_ = fake.Reset(ctx, "k")
	must(swlimit.AllowAll(ctx, fake.Request("l", 7)))
	must(swlimit.Admit(ctx, []swlimit.Part{fake.Request("m", 8)}))
	if want := []Call{{"allow", "k", 3}, {"peek", "k", 1}, {"record", "k", 4}, {"wait", "k", 5}, {"refund", "k", 6},
		{"block", "k", 0}, {"unblock", "k", 0}, {"reset", "k", 0}, {"allow", "l", 7}, {"allow", "m", 8}}; !slices.Equal(fake.Calls(), want) {
		t.Errorf("%v", fake.Calls())
	}
	if n := fake.Statistics().Local.Granted; n != 6 {
		t.Errorf("%d are granted", n)
	}
}

func TestBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, fake := t.Context(), New(ten, swlimit.BlockFor(time.Hour))
		until := must(fake.Block(ctx, "k", time.Minute))
		if again := must(fake.BlockUnlessBlocked(ctx, "k", time.Hour)); !again.Equal(until) {
			t.Errorf("%v, then %v", until, again)
		}
		time.Sleep(20 * time.Second)
		if d := must(fake.Allow(ctx, "k")); d.RetryAfter != 40*time.Second {
			t.Errorf("%+v", d)
		}
		time.Sleep(41 * time.Second)
		if d := must(fake.Allow(ctx, "k")); !d.Allowed() {
			t.Errorf("%+v", d)
		}
		fake.DenyNext(1, time.Second)
		must(fake.Allow(ctx, "k"))
		if d := must(fake.Allow(ctx, "k")); d.RetryAfter != time.Hour {
			t.Errorf("a denial blocks: %+v", d)
		}
		for retryAfter, want := range map[time.Duration]time.Duration{
			time.Second: time.Hour, 2 * time.Hour: 2 * time.Hour, swlimit.Never: swlimit.Never,
		} {
			fake.Grant()
			fake.DenyNext(1, retryAfter)
			if d := must(fake.Allow(ctx, "k")); d.RetryAfter != want {
				t.Errorf("the denial that begins a block: %+v", d)
			}
			if d := must(fake.Allow(ctx, "k")); d.RetryAfter != time.Hour {
				t.Errorf("%v blocks: %+v", retryAfter, d)
			}
		}
		fake.Grant()
		if d := must(fake.AllowN(ctx, "k", 11)); !d.Never() || d.ResetAfter != time.Hour {
			t.Errorf("a cost above the limit blocks: %+v", d)
		}
		fake.Grant("k")
		if d := must(fake.Allow(ctx, "k")); !d.Allowed() || must(fake.Unblock(ctx, "k")) {
			t.Errorf("%+v", d)
		}
	})
}

func TestSeveral(t *testing.T) {
	ctx, first, second := t.Context(), New(ten, swlimit.Prefix("1:")), New(ten, swlimit.Prefix("2:"))
	second.Deny(time.Second, "k")
	if d := must(swlimit.AllowAll(ctx, first.Request("k", 10), second.Request("k", 1))); d.Allowed || d.RetryAfter() != time.Second {
		t.Errorf("%+v", d)
	}
	for range 3 {
		d := must(swlimit.AllowAll(ctx, first.Request("k", 10), second.Request("l", 1)))
		if left, _ := d.Each[0].Remaining(); !d.Allowed || left != 0 {
			t.Errorf("%+v", d)
		}
	}
	if a := must(swlimit.Admit(ctx, []swlimit.Part{first.Request("k", 10), second.Request("k", 1)})); a.Allowed {
		t.Errorf("%+v", a)
	}
	for _, call := range first.Calls() {
		if call.Method != "allow" {
			t.Errorf("nobody called %+v", call)
		}
	}
}

// What Settle puts right is no call, and no request that is denied.
func TestSettles(t *testing.T) {
	ctx, fake := t.Context(), New(ten)
	for used, changed := range map[int64]int64{1: -1, 2: 0, 5: 3} {
		a := must(swlimit.Admit(ctx, []swlimit.Part{fake.Request("k", 2)}))
		calls := len(fake.Calls())
		fake.DenyNext(1, time.Second)
		if changes := must(a.Settle(ctx, used)); !slices.Equal(changes, []int64{changed}) || len(fake.Calls()) != calls {
			t.Errorf("%v, %v", changes, fake.Calls())
		}
		if d := must(fake.Allow(ctx, "k")); d.Allowed() {
			t.Errorf("%+v", d)
		}
	}
}

// A middleware takes it.
func TestMiddleware(t *testing.T) {
	fake := New(ten)
	handler := httplimit.Middleware(fake.Limiter, func(*http.Request) string { return "k" })(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	fake.DenyNext(1, time.Second)
	for _, want := range []int{429, 200} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/", nil))
		if answer.Code != want {
			t.Errorf("%d instead of %d", answer.Code, want)
		}
	}
}

func TestWrongFakes(t *testing.T) {
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, swlimit.ErrArgument) {
			t.Error(err)
		}
	}()
	New(swlimit.Quota{Limit: -1, Window: math.MaxInt64})
}
