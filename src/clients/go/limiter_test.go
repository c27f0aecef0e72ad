package swlimit

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"
)

// kinds are limiters of which each decides somewhere else.
func kinds(t *testing.T, limit int64, f func(*testing.T, *Limiter)) {
	t.Run("direct", func(t *testing.T) { f(t, limiter(t, dial(t), limit, Direct)) })
	t.Run("cached", func(t *testing.T) { f(t, limiter(t, dial(t), limit)) })
	t.Run("local", func(t *testing.T) { f(t, limiter(t, nil, limit)) })
}

func TestLimiter(t *testing.T) {
	kinds(t, 10, func(t *testing.T, l *Limiter) {
		k := key()
		d := must(l.Allow(background, k))
		if left, ok := d.Remaining(); !d.Allowed() || d.Granted != 1 || d.Limit != 10 || left != 9 || !ok ||
			d.RetryAfter != 0 || d.ResetAfter < time.Minute {
			t.Errorf("%+v", d)
		}
		if d := must(l.AllowN(background, k, 4)); d.Granted != 4 {
			t.Errorf("%+v", d)
		}
		if d := must(l.PeekN(background, k, 6)); d.Allowed() || d.RetryAfter <= 0 {
			t.Errorf("%+v", d)
		}
		if d := must(l.AllowAtMost(background, k, 9)); d.Granted != 5 {
			t.Errorf("%+v", d)
		}
		if d := must(l.Allow(background, k)); d.Allowed() || d.RetryAfter <= 0 || d.RetryAfter > 70*time.Second {
			t.Errorf("%+v", d)
		}
		if d := must(l.AllowN(background, k, 11)); d.Allowed() || d.RetryAfter != Never {
			t.Errorf("%+v", d)
		}
		if n := must(l.Refund(background, k, 3)); n != 3 {
			t.Errorf("%d given back", n)
		}
		if d := must(l.AllowN(background, k, 3)); !d.Allowed() {
			t.Errorf("after a refund: %+v", d)
		}
		if n := must(l.RefundAged(background, k, 1, time.Second)); n != 1 {
			t.Errorf("%d given back", n)
		}
		if d := must(l.Record(background, k, 5)); d.Allowed() {
			t.Errorf("%+v", d)
		}
		if d := must(l.RecordAged(background, k, 5, time.Second)); d.Allowed() {
			t.Errorf("%+v", d)
		}
		if err := l.Reset(background, k); err != nil {
			t.Error(err)
		}
		if left, _ := must(l.Peek(background, k)).Remaining(); left != 10 {
			t.Errorf("%d left", left)
		}
	})
}

func TestBlock(t *testing.T) {
	kinds(t, 10, func(t *testing.T, l *Limiter) {
		k := key()
		until := must(l.Block(background, k, time.Hour))
		if left := time.Until(until); left < 59*time.Minute || left > 61*time.Minute {
			t.Errorf("blocked for %v", left)
		}
		if again := must(l.BlockUnlessBlocked(background, k, time.Minute)); again.Sub(until).Abs() > time.Minute {
			t.Errorf("blocked until %v instead of %v", again, until)
		}
		if d := must(l.Allow(background, k)); d.Allowed() || d.RetryAfter < 58*time.Minute {
			t.Errorf("%+v", d)
		}
		if !must(l.Unblock(background, k)) || must(l.Unblock(background, k)) {
			t.Error("unblocked once")
		}
		if d := must(l.Allow(background, k)); !d.Allowed() {
			t.Errorf("%+v", d)
		}
	})
}

func TestBlockFor(t *testing.T) {
	for _, client := range []*Client{dial(t), nil} {
		l := limiter(t, client, 1, BlockFor(time.Hour))
		k := key()
		must(l.Allow(background, k))
		if d := must(l.Allow(background, k)); d.Allowed() || d.RetryAfter < 59*time.Minute {
			t.Errorf("%+v", d)
		}
	}
}

func TestSeveralLimits(t *testing.T) {
	for _, client := range []*Client{dial(t), nil} {
		k := key()
		few := limiter(t, client, 2, Prefix("few:"))
		many := limiter(t, client, 10, Prefix("many:"))
		for range 2 {
			if d := must(AllowAll(background, few.Request(k, 1), many.Request(k, 3))); !d.Allowed || len(d.Each) != 2 {
				t.Errorf("%+v", d)
			}
		}
		d := must(AllowAll(background, few.Request(k, 1), many.Request(k, 3)))
		if d.Allowed || d.RetryAfter() <= 0 || d.Each[0].Allowed() {
			t.Errorf("%+v", d)
		}
		if left, _ := must(many.Peek(background, k)).Remaining(); left != 4 {
			t.Errorf("%d left: a denial has counted", left)
		}
		for _, wrong := range [][]Request{{}, {few.Request(k, 1), few.Request(k, 1)}, {few.Request(k, 0)},
			{few.Request(k, 1), limiter(t, connect(t, Server{Addr: "127.0.0.1:1"}), 1).Request("other", 1)}} {
			if _, err := AllowAll(background, wrong...); !errors.Is(err, ErrArgument) {
				t.Errorf("%v", err)
			}
		}
	}
}

func TestWrongArguments(t *testing.T) {
	client := connect(t, Server{Addr: "127.0.0.1:1"})
	good := Quota{Limit: 1, Window: time.Second}
	for i, err := range []error{
		second(New(client, Quota{Limit: -1, Window: time.Second})),
		second(New(client, Quota{Limit: 1 << 53, Window: time.Second})),
		second(New(client, Quota{Limit: 1})),
		second(New(client, Quota{Limit: 1, Window: time.Microsecond})),
		second(New(client, Quota{Limit: 1, Window: math.MaxInt64})),
		second(New(client, Quota{Limit: 1, Window: time.Second, Resolution: 7 * time.Millisecond})),
		second(New(client, Quota{Limit: 1, Window: time.Hour, Resolution: time.Millisecond})),
		second(New(client, good, Mode("allow"))),
		second(New(nil, good, Direct)),
		second(New(client, good, OnFailure("cached"))),
		second(New(client, good, LocalShare(0))),
		second(New(client, good, LocalShare(math.NaN()))),
		second(New(client, good, Timeout(0))),
		second(New(client, good, MaxKeys(0))),
		second(NewClient(Server{Addr: "127.0.0.1:1"}, MaxWaiting(0))),
		second(NewClient(Server{Addr: "127.0.0.1:1"}, PoolSize(0))),
		second(NewClient(Server{Addr: "127.0.0.1:1"}, ClientName("two words"))),
		second(NewClient(Server{Addr: "127.0.0.1:1"}, FollowCluster("maybe"))),
		second(NewClient(Server{Addr: "127.0.0.1:1"}, nil)),
		second(NewClient(nil)),
		second(NewClient((*Cluster)(nil))),
		second(NewClient(Server{})),
		second(New(client, good, nil)),
		second(New(client, good, BlockFor(0))),
		second(New(client, good, SyncInterval(0))),
		second(New(nil, good, Eventual)),
		second(New(client, good, Cold(2))),
		second(New(client, good, WarmUp(time.Hour), Cold(1))),
		second(New(client, good, WarmUp(time.Hour), Cold(1001))),
		second(New(client, good, WarmUp(0))),
		second(New(client, good, WarmUp(9*time.Second))),
		second(limiter(t, nil, 1, WarmUp(time.Hour)).With(Quota{Limit: 1, Window: time.Hour})),
		second(NewHolds(client, 1, time.Minute, WarmUp(time.Hour))),
		second(NewBudget(client, 1, Daily(), nil, WarmUp(time.Hour))),
		second(NewHolds(client, 1, time.Minute, Eventual)),
		second(NewBudget(client, 1, Daily(), nil, Eventual)),
		second(NewHolds(client, 1, time.Second)),
		second(NewHolds(client, -1, time.Minute)),
	} {
		if !errors.Is(err, ErrArgument) {
			t.Errorf("case %d: %v", i, err)
		}
	}
	l := limiter(t, nil, 1)
	if _, err := l.AllowN(background, "k", 0); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if _, err := l.Refund(background, "k", 0); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
	if _, err := l.Block(background, "k", 0); !errors.Is(err, ErrArgument) {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// What was not made, or is nil, is an error and no panic.
func TestNothingPanics(t *testing.T) {
	second := func(_ any, err error) error { return err }
	good := must(New(nil, Quota{Limit: 1, Window: time.Second}))
	var none *Limiter
	for i, err := range []error{
		second(new(Limiter).Allow(background, "k")), second(none.Allow(background, "k")), second(none.Peek(background, "k")),
		none.Wait(background, "k"), none.Reset(background, "k"), second(none.Refund(background, "k", 1)),
		second(none.Block(background, "k", time.Second)), second(none.With(Quota{Limit: 1, Window: time.Second})),
		second(new(Budget).Allow(background, "k")), second((*Budget)(nil).Peek(background, "k")),
		second(new(Holds).TryAcquire(background, "k")), second((*Holds)(nil).Holders(background, "k", 1)),
		second(new(Limits).Allow(background, "k")), second(new(Limits).Peek(background, "k")),
		second(must(NewLimits(nil, "1/second")).Peek(background, "")),
		second(AllowAll(background, Request{})), second(AllowAll(background, good.Request("k", 1), none.Request("l", 1))),
		second(Admit(background, []Part{nil})), second(Admit(background, []Part{Named("a", nil)})),
		second(Admit(background, []Part{Limited(1, nil)})), second(Admit(background, []Part{none.Request("k", 1)})),
		second(Admit(background, []Part{good.Request("k", 1)}, nil)), (*Client)(nil).Ping(background),
		new(Client).Ping(background), second(New(new(Client), Quota{Limit: 1, Window: time.Second})),
		second(NewHolds(new(Client), 1, time.Minute)), second(NewBudget(new(Client), 1, Daily(), nil)),
	} {
		if !errors.Is(err, ErrArgument) {
			t.Errorf("%d: %v", i, err)
		}
	}
	for _, end := range []func() error{none.Close, (*Limits)(nil).Close, (*Client)(nil).Close, new(Client).Close} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if name, all := new(Limiter).Name(), (*Limits)(nil).Limiters(); name != "" || all != nil {
		t.Errorf("%q, %v", name, all)
	}
	if d, err := must(NewLimits(nil, "1/second")).Peek(background, ""); err == nil || d.Allowed {
		t.Errorf("%+v", d)
	}
}

// No method panics of what is nil, or was not made, and what has no error says zero values.
func TestNoMethodOfNothingPanics(t *testing.T) {
	for _, nothing := range []any{(*Limiter)(nil), new(Limiter), (*Client)(nil), new(Client), (*Budget)(nil), new(Budget),
		(*Holds)(nil), new(Holds), (*Hold)(nil), new(Hold), (*Limits)(nil), new(Limits), (*Admission)(nil), new(Admission),
		new(Spending), (*Adaptive)(nil), new(Adaptive), (*Permit)(nil), new(Permit), (*DeniedError)(nil), Request{}} {
		of := reflect.ValueOf(nothing)
		for i := range of.NumMethod() {
			name, method := of.Type().Method(i).Name, of.Method(i)
			var arguments []reflect.Value
			for j := range method.Type().NumIn() {
				argument := reflect.Zero(method.Type().In(j))
				if argument.Type() == reflect.TypeFor[context.Context]() {
					argument = reflect.ValueOf(background)
				}
				arguments = append(arguments, argument)
			}
			call := method.Call
			if method.Type().IsVariadic() {
				call = method.CallSlice
			}
			func() {
				defer func() {
					if err := recover(); err != nil {
						t.Errorf("%s of %T: %v", name, nothing, err)
					}
				}()
				call(arguments)
			}()
		}
	}
	var none *Limiter
	if q, n, states := none.Quota(), none.Statistics(), (*Client)(nil).Servers(); q != (Quota{}) || n != (Statistics{}) || states != nil {
		t.Errorf("%+v, %+v, %v", q, n, states)
	}
	if hold := (*Hold)(nil); hold.Live() || hold.Context().Err() == nil {
		t.Error("it is held")
	}
}
