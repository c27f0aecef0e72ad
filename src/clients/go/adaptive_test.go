package swlimit

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"
)

func TestAdaptiveVectors(t *testing.T) {
	type state struct {
		Ends       *int64 `json:"ends_us"`
		Samples    int64
		Sum        int64 `json:"sum_us"`
		Inflight   int64
		Drops      int64
		Windows    int64
		WindowsSum float64 `json:"windows_us"`
		Long       float64 `json:"long_us"`
		Estimate   float64
	}
	type trace struct {
		Name    string
		Options struct {
			Min, Max  float64
			Algorithm Algorithm
			Window    int64 `json:"window_us"`
			Timeout   int64 `json:"timeout_us"`
		}
		Steps []struct {
			Sample [4]any
			State  state
		}
		Phases []struct {
			Windows  int64
			Trip     int64 `json:"rtt_us"`
			Ramp     int64 `json:"ramp_us"`
			Capacity int64
			Share    [3]int64
			Samples  int64
			Drops    int64
		}
		States []struct {
			Windows int64
			State   state
		}
	}
	var cases struct{ Samples, Phases []trace }
	vectors(t, "adaptive", &cases)
	begin := func(c *trace) (*adaptation, *adapted) {
		o := c.Options
		return &adaptation{o.Min, o.Max, o.Algorithm == AIMD, o.Window, o.Timeout}, &adapted{estimate: o.Min}
	}
	check := func(c *trace, at int64, s *adapted, want state) {
		t.Helper()
		ends := int64(0)
		if want.Ends != nil {
			ends = *want.Ends
		}
		if got := (adapted{want.Ends != nil, ends, want.Samples, want.Sum, want.Inflight, want.Drops, want.Windows,
			want.WindowsSum, want.Long, want.Estimate}); got != *s {
			t.Errorf("%s: at %d: %+v instead of %+v", c.Name, at, *s, got)
		}
	}
	for _, c := range cases.Samples {
		a, s := begin(&c)
		for i, each := range c.Steps {
			number := func(at int) int64 { return int64(each.Sample[at].(float64)) }
			a.step(s, sample{number(0), number(1), number(2), each.Sample[3].(bool)})
			check(&c, int64(i), s, each.State)
		}
	}
	for _, c := range cases.Phases {
		a, s := begin(&c)
		w, next := int64(0), 0
		for _, p := range c.Phases {
			for n := range p.Windows {
				inflight := s.limit()*p.Share[0]/p.Share[1] + p.Share[2]
				trip := p.Trip + n*p.Ramp
				if p.Capacity > 0 {
					trip = trip * max(inflight, p.Capacity) / p.Capacity
				}
				for i := range p.Samples {
					end := w*(a.window+1) + (a.window+1)*(i+1)/p.Samples
					a.step(s, sample{end, trip + i, inflight, i < p.Drops})
				}
				w++
				if next < len(c.States) && c.States[next].Windows == w {
					check(&c, w, s, c.States[next].State)
					next++
				}
			}
		}
		if next == 0 || next != len(c.States) {
			t.Errorf("%s: %d states of %d", c.Name, next, len(c.States))
		}
	}
	if len(cases.Samples) < 10 || len(cases.Phases) < 10 {
		t.Error("too few cases")
	}
}

func TestAdaptive(t *testing.T) {
	a := must(NewAdaptive(AdaptiveOptions{Min: 2, Max: 3, Window: 100 * time.Millisecond}))
	first, second := must(a.Permit()), must(a.Permit())
	var denied *DeniedError
	if _, err := a.Permit(); !errors.As(err, &denied) || denied.Decision.Limit != 2 || denied.RetryAfter() != Unknown {
		t.Error(err)
	}
	first.Done(false)
	first.Done(true)
	second.Ignore()
	if want := (AdaptiveStatistics{Done: 1, Ignored: 1, Denied: 1}); a.InFlight() != 0 || a.Statistics() != want {
		t.Errorf("%+v", a.Statistics())
	}
	eventually(t, "the limit rises", func() bool {
		permits := []*Permit{must(a.Permit()), must(a.Permit())}
		time.Sleep(200 * time.Microsecond)
		for _, permit := range permits {
			permit.Done(false)
		}
		return a.Limit() == 3
	})
	failed := errors.New("failed")
	for _, c := range []struct {
		err            error
		counts, isDrop bool
	}{{nil, true, false}, {failed, false, false}, {context.DeadlineExceeded, true, true},
		{os.ErrDeadlineExceeded, true, true}, {context.Canceled, false, false}} {
		b := must(NewAdaptive(AdaptiveOptions{}))
		if err := b.Run(func() error { time.Sleep(200 * time.Microsecond); return c.err }); err != c.err {
			t.Error(err)
		}
		if (b.state.samples == 1) != c.counts || (b.state.drops == 1) != c.isDrop || b.InFlight() != 0 {
			t.Errorf("%v: %+v", c.err, b.state)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = a.Run(func() error { panic(failed) })
	}()
	var running sync.WaitGroup
	for range 100 {
		running.Go(func() {
			if permit, err := a.Permit(); err == nil {
				defer permit.Done(false)
				if n := a.InFlight(); n < 1 || n > 3 {
					t.Errorf("%d are under way", n)
				}
			}
		})
	}
	running.Wait()
	if a.InFlight() != 0 {
		t.Errorf("%d are under way", a.InFlight())
	}
	for _, o := range []AdaptiveOptions{{Min: -1}, {Min: 3, Max: 2}, {Algorithm: "best"}, {Window: time.Microsecond},
		{Timeout: -time.Second}} {
		if _, err := NewAdaptive(o); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if a := must(NewAdaptive(AdaptiveOptions{Min: 300})); a.Limit() != 300 {
		t.Error(a.Limit())
	}
}

func TestAdaptiveThatWasNotMade(t *testing.T) {
	for _, a := range []*Adaptive{nil, new(Adaptive)} {
		if err := second(a.Permit()); err != errNotMade {
			t.Error(err)
		}
		if err := a.Run(func() error { return nil }); err != errNotMade {
			t.Error(err)
		}
	}
}
