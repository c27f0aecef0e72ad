package swlimit

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"
)

// admissible are a rate of 1000 and two kinds of places, beside a look at what they hold.
type admissible struct {
	rates      *Limiter
	jobs, seat *Holds
	key        string
}

func newAdmissible(t *testing.T, client *Client, places int64, options ...Option) *admissible {
	t.Helper()
	with := func(prefix string) []Option { return append([]Option{Prefix(prefix)}, options...) }
	return &admissible{limiter(t, client, 1000, append(with("tokens:"), direct(client))...),
		holding(t, client, places, with("jobs:")...), holding(t, client, places, with("seat:")...), key()}
}

func direct(client *Client) Mode {
	if client == nil {
		return Local
	}
	return Direct
}

func (a *admissible) parts(tokens int64) []Part {
	return []Part{Named("tokens", a.rates.Request(a.key, tokens)), a.jobs.Request(a.key, 1), a.seat.Request(a.key, 1)}
}

func (a *admissible) used(t *testing.T) int64 {
	t.Helper()
	left, _ := must(a.rates.Peek(background, a.key)).Remaining()
	return 1000 - left
}

// held is how many units of the places, and how many reservations there are at the server.
func (a *admissible) held(t *testing.T) [3]int {
	t.Helper()
	name := beside(a.rates.prefix+a.key, "reserved")
	return [3]int{len(must(a.jobs.Holders(background, a.key, 10))), len(must(a.seat.Holders(background, a.key, 10))),
		len(must(holding(t, a.rates.client, 1).Holders(background, name, 10)))}
}

// byAll runs a test by the module, by the script, and in this process.
func byAll(t *testing.T, test func(t *testing.T, client *Client)) {
	byBoth(t, func(t *testing.T, addr string) { test(t, connect(t, Server{Addr: addr})) })
	t.Run("local", func(t *testing.T) { test(t, nil) })
}

func TestPlacesEndBeforeTheUsageIsKnown(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		of := newAdmissible(t, client, 1)
		a := must(Admit(background, of.parts(100)))
		if !a.Allowed || len(a.Each) != 3 || len(a.Holds) != 2 || a.Each[2].Limit != 1 || of.used(t) != 100 {
			t.Fatalf("%+v", a)
		}
		if client != nil && of.held(t) != [3]int{1, 1, 1} {
			t.Errorf("%v are held", of.held(t))
		}
		a.Release()
		if again := must(Admit(background, of.parts(1))); !again.Allowed {
			t.Errorf("%+v", again)
		} else {
			again.ReleaseSoon()
		}
		eventually(t, "both are free", func() bool {
			b := must(Admit(background, []Part{of.jobs.Request(of.key, 1), of.seat.Request(of.key, 1)}))
			b.Release()
			return b.Allowed
		})
		if changes := must(a.SettleNamed(background, map[string]int64{"tokens": 160})); !reflect.DeepEqual(changes,
			[]int64{60}) || of.used(t) != 161 {
			t.Errorf("%v, %d are used", changes, of.used(t))
		}
		if again := must(a.Settle(background, 1)); again != nil {
			t.Errorf("%v", again)
		}
	})
}

func TestEachHoldIsLostForItself(t *testing.T) {
	t.Parallel()
	byBoth(t, func(t *testing.T, addr string) {
		t.Parallel()
		client := connect(t, Server{Addr: addr})
		of := newAdmissible(t, client, 2)
		of.jobs.ttl, of.seat.ttl = leastTTL, leastTTL
		a := must(Admit(background, of.parts(100)))
		if err := of.jobs.Reset(background, of.key); err != nil {
			t.Fatal(err)
		}
		<-a.Holds[0].Done()
		if context.Cause(a.Holds[0].Context()) != ErrLost || !a.Holds[1].Live() || !a.reservation.Live() {
			t.Errorf("%+v", a)
		}
		// The rest was renewed all the while.
		if changes := must(a.Settle(background, 40)); !reflect.DeepEqual(changes, []int64{-60}) || of.used(t) != 40 {
			t.Errorf("%v, %d are used", changes, of.used(t))
		}
		if of.held(t) != [3]int{} || a.Holds[1].Live() {
			t.Errorf("%v are held", of.held(t))
		}
	})
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	byAll(t, func(t *testing.T, client *Client) {
		t.Parallel()
		of := newAdmissible(t, client, 1)
		of.jobs.ttl, of.seat.ttl = leastTTL, leastTTL
		a := must(Admit(background, of.parts(100), MaxAge(10*time.Millisecond)))
		if client != nil && (!a.Holds[0].Live() || of.held(t) != [3]int{1, 1, 1}) {
			t.Errorf("%v are held", of.held(t))
		}
		for _, hold := range a.Holds {
			<-hold.Done()
			if hold.Live() || context.Cause(hold.Context()) != ErrLost {
				t.Error("lost, and not known to be")
			}
		}
		if client == nil {
			return
		}
		eventually(t, "all have ended", func() bool { return of.held(t) == [3]int{} })
		// What was reserved stays; what was used beyond is counted.
		if changes, err := a.Settle(background, 150); changes != nil || err != nil || of.used(t) != 150 {
			t.Errorf("%v, %v, %d are used", changes, err, of.used(t))
		}
		b := must(Admit(background, of.parts(1)[:1], MaxAge(time.Hour)))
		if of.held(t) != [3]int{0, 0, 1} {
			t.Errorf("%v are held", of.held(t))
		}
		if changes := must(b.Settle(background, 0)); !reflect.DeepEqual(changes, []int64{-1}) {
			t.Errorf("%v", changes)
		}
	})
}

// Nobody has to settle: the reservation of what is collected as garbage ends.
func TestForgottenAdmissions(t *testing.T) {
	of := newAdmissible(t, dial(t), 1)
	must(Admit(background, of.parts(1))).Release()
	eventually(t, "nothing is reserved", func() bool {
		runtime.GC()
		return of.held(t) == [3]int{}
	})
	if of.used(t) != 1 {
		t.Errorf("%d are used", of.used(t))
	}
}

// Settled and released in the background, through a relay that loses replies: each is counted as it was settled, once.
func TestSettledSoon(t *testing.T) {
	t.Parallel()
	byBoth(t, func(t *testing.T, addr string) {
		relay := newRelay(t, addr, 15)
		client := connect(t, Server{Addr: relay.addr})
		of := newAdmissible(t, client, 1000, Timeout(time.Second))
		of.jobs.ttl, of.seat.ttl = leastTTL, leastTTL // lost replies are asked for again after a tenth of it
		wanted, unknown := int64(0), 0
		var all []*Admission
		for i := 0; relay.lost.Load() < 5 || i < 30; i++ {
			a, err := Admit(background, of.parts(5))
			switch {
			case errors.Is(err, ErrUnavailable):
				unknown++ // it was granted, and goes back
				time.Sleep(5 * time.Millisecond)
				continue
			case err != nil:
				t.Fatal(err)
			}
			all = append(all, a)
			wanted += int64(i % 10)
			a.ReleaseSoon()
			if err := a.SettleNamedSoon(map[string]int64{"tokens": int64(i % 10)}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all is settled", func() bool { return client.pending.Load() == 0 })
		runtime.KeepAlive(all)
		straight := connect(t, Server{Addr: addr})
		of.rates.client, of.jobs.client, of.seat.client = straight, straight, straight
		if of.used(t) != wanted || of.held(t) != [3]int{} {
			t.Errorf("%d are used instead of %d, %v are held, %d unknown, %d replies lost", of.used(t), wanted, of.held(t),
				unknown, relay.lost.Load())
		}
	})
}

func TestCloseWaitsForSettlements(t *testing.T) {
	byBoth(t, func(t *testing.T, addr string) {
		client := must(NewClient(Server{Addr: addr}))
		of := newAdmissible(t, client, 100)
		for range 50 {
			if err := must(Admit(background, of.parts(5))).SettleSoon(1); err != nil {
				t.Fatal(err)
			}
		}
		last := must(Admit(background, of.parts(5)))
		client.Close()
		if err := last.SettleSoon(1); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		client = connect(t, Server{Addr: addr})
		of.rates.client, of.jobs.client, of.seat.client = client, client, client
		if of.used(t) != 55 || of.held(t) != [3]int{} {
			t.Errorf("%d are used, %v are held", of.used(t), of.held(t))
		}
	})
}

func TestWaitsForAnAdmission(t *testing.T) {
	t.Parallel()
	byAll(t, func(t *testing.T, client *Client) {
		of := newAdmissible(t, client, 1)
		held := must(of.jobs.TryAcquire(background, of.key))
		before := func() int64 { s := of.seat.Statistics(); return s.Server.all() + s.Local.all() }
		waiting := before()
		var running sync.WaitGroup
		running.Go(func() {
			a := must(Admit(background, of.parts(1), WaitFor(time.Hour)))
			if !a.Allowed || a.DeniedBy() != nil || a.RetryAfter() != 0 {
				t.Errorf("%+v", a)
			}
			a.Release()
		})
		eventually(t, "it asks again", func() bool { return before() >= waiting+2 })
		held.Release()
		running.Wait()
		// At once where there is no hope.
		must(of.rates.AllowN(background, of.key, 990))
		for _, tokens := range []int64{100, 1001} {
			waiting = before()
			a := must(Admit(background, of.parts(tokens), WaitFor(time.Second)))
			if by := a.DeniedBy(); a.Allowed || by == nil || by.Part != "tokens" || before() != waiting+1 ||
				(by.Decision.RetryAfter == Never) != (tokens > 1000) || a.RetryAfter() != by.Decision.RetryAfter {
				t.Errorf("%+v, %+v, asked %d times", a, by, before()-waiting)
			}
		}
		must(of.jobs.TryAcquire(background, of.key))
		ctx, cancel := context.WithCancel(background)
		waiting = before()
		running.Go(func() {
			if a, err := Admit(ctx, of.parts(1), WaitFor(time.Hour)); err != context.Canceled {
				t.Errorf("%+v, %v", a, err)
			}
		})
		eventually(t, "it waits", func() bool { return before() > waiting })
		cancel()
		running.Wait()
		soon, cancel := context.WithTimeout(background, 300*time.Millisecond)
		defer cancel()
		if a, err := Admit(soon, of.parts(1), WaitFor(time.Hour)); err != nil || a.Allowed || a.DeniedBy() == nil {
			t.Errorf("%+v, %v", a, err)
		}
		if client == nil {
			return
		}
		waiting = before()
		running.Go(func() {
			if a, err := Admit(background, of.parts(1), WaitFor(time.Hour)); !errors.Is(err, ErrClosed) {
				t.Errorf("%+v, %v", a, err)
			}
		})
		eventually(t, "it waits", func() bool { return before() > waiting })
		client.Close()
		running.Wait()
	})
}

func TestLimitsOfOneAdmission(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		of := newAdmissible(t, client, 1)
		spent := must(NewBudget(client, 1, Yearly(time.January, 1), nil, Timeout(20*time.Second), OnFailure(FailError)))
		parts := []Part{Limited(2000, of.rates.Request(of.key, 1500)), Limited(3, of.jobs.Request(of.key, 2)),
			Limited(30, Named("spent", spent.Request(of.key, 20)))}
		for i := range 2 {
			a := must(Admit(background, parts))
			if a.Allowed != (i == 0) || a.Each[0].Limit != 2000 || a.Each[1].Limit != 3 || a.Each[2].Limit != 30 {
				t.Errorf("%+v", a)
			}
		}
		if by := must(Admit(background, parts[2:])).DeniedBy(); by.Part != "spent" || by.Decision.Limit != 30 ||
			!errors.Is(by, ErrDenied) {
			t.Errorf("%+v", by)
		}
		// A place may be free at any moment.
		must(Admit(background, []Part{of.seat.Request(of.key, 1)}))
		if by := must(Admit(background, of.parts(1)[1:])).DeniedBy(); by.RetryAfter() > time.Second ||
			client != nil && (by.RetryAfter() != time.Second || by.Decision.RetryAfter <= time.Second) {
			t.Errorf("%+v", by)
		}
		if by := must(Admit(background, []Part{Limited(0, of.seat.Request(of.key, 1))})).DeniedBy(); by.Part != "default" ||
			by.RetryAfter() != Never {
			t.Errorf("%+v", by)
		}
	})
}

func TestSpend(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		failed := errors.New("failed")
		saw := func(units ...int64) func(s *Spending) error {
			return func(s *Spending) error {
				for _, n := range units {
					if err := s.Saw(map[string]int64{"tokens": n}); err != nil {
						t.Error(err)
					}
				}
				return nil
			}
		}
		for name, c := range map[string]struct {
			f    func(*Spending) error
			on   ErrorPolicy
			want int64
			err  error
		}{
			"the last usage":        {saw(7, 800, 30), Keep, 30, nil},
			"as reserved":           {saw(), GiveBack, 100, nil},
			"kept":                  {func(*Spending) error { return failed }, Keep, 100, failed},
			"given back":            {func(*Spending) error { return failed }, GiveBack, 0, failed},
			"cancelled":             {func(*Spending) error { return context.Canceled }, GiveBack, 100, context.Canceled},
			"used before it failed": {func(s *Spending) error { return errors.Join(saw(30)(s), failed) }, GiveBack, 30, failed},
		} {
			of := newAdmissible(t, client, 1)
			err := Spend(background, of.parts(100), func(s *Spending) error {
				if !s.Allowed || len(s.Holds) != 2 || s.Context().Err() != nil || of.used(t) != 100 {
					t.Errorf("%+v", s)
				}
				return c.f(s)
			}, OnError(c.on))
			if !errors.Is(err, c.err) || of.used(t) != c.want {
				t.Errorf("%s: %v, %d are used", name, err, of.used(t))
			}
			if client != nil && of.held(t) != [3]int{} {
				t.Errorf("%s: %v are held", name, of.held(t))
			}
		}
		of := newAdmissible(t, client, 1)
		func() {
			defer func() {
				if recover() != failed {
					t.Error("it did not panic")
				}
			}()
			_ = Spend(background, of.parts(100)[:1], func(*Spending) error { panic(failed) }, OnError(GiveBack))
		}()
		if of.used(t) != 0 {
			t.Errorf("%d are used", of.used(t))
		}
		err := Spend(background, of.parts(1), func(s *Spending) error {
			var denied *DeniedError
			err := Spend(s.Context(), []Part{Named("seat", of.seat.Request(of.key, 1))}, func(*Spending) error { return nil })
			if !errors.As(err, &denied) || denied.Part != "seat" || !errors.Is(err, ErrDenied) {
				t.Error(err)
			}
			for _, wrong := range []map[string]int64{{"seat": 1}, {"tokens": -1}, {"": 1}} {
				if err := s.Saw(wrong); !errors.Is(err, ErrArgument) {
					t.Error(err)
				}
			}
			s.Holds[1].end(ErrLost, s.Holds[1].soon)
			<-s.Context().Done()
			return context.Cause(s.Context())
		})
		if err != ErrLost {
			t.Error(err)
		}
		for _, option := range []AdmitOption{MaxAge(0), WaitFor(-1), OnError("never")} {
			if err := Spend(background, of.parts(1), saw(), option); !errors.Is(err, ErrArgument) {
				t.Error(err)
			}
		}
	})
}
