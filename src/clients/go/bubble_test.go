package swlimit

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// In a bubble of testing/synctest, limiters without a Client go by its clock.
func TestInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := must(New(nil, Quota{Limit: 2, Window: time.Minute}))
		must(l.AllowN(background, "k", 2))
		denied := must(l.Allow(background, "k"))
		if denied.Allowed() || denied.RetryAfter <= 0 {
			t.Errorf("%+v", denied)
		}
		time.Sleep(denied.RetryAfter - time.Millisecond)
		if d := must(l.Allow(background, "k")); d.Allowed() {
			t.Errorf("%+v", d)
		}
		time.Sleep(time.Millisecond)
		if d := must(l.Allow(background, "k")); !d.Allowed() {
			t.Errorf("%+v", d)
		}
		must(l.Block(background, "k", time.Hour))
		began := time.Now()
		if err := l.Wait(background, "k"); err != nil || time.Since(began) < time.Hour {
			t.Error(err, time.Since(began))
		}

		budget := must(NewBudget(nil, 1, Daily(), nil))
		if d := must(budget.Allow(background, "k")); !d.Allowed() {
			t.Errorf("%+v", d)
		}
		time.Sleep(must(budget.Allow(background, "k")).RetryAfter)
		if d := must(budget.Allow(background, "k")); !d.Allowed() {
			t.Errorf("%+v", d)
		}

		holds := must(NewHolds(nil, 1, time.Minute))
		first := must(Admit(background, []Part{holds.Request("k", 1)}, MaxAge(time.Hour)))
		began = time.Now()
		second := must(Admit(background, []Part{holds.Request("k", 1)}, WaitFor(2*time.Hour)))
		if passed := time.Since(began); !second.Allowed || passed < time.Hour || passed > time.Hour+time.Second {
			t.Errorf("%+v after %v", second, passed)
		}
		first.Release()
		second.Release()

		rising := must(New(nil, Quota{Limit: 90, Window: time.Second}, WarmUp(time.Minute)))
		most := int64(0)
		// More often than a subinterval passes: a key of which nothing is counted begins from the cold limit again.
		for range 3000 {
			for must(rising.Allow(background, "k")).Allowed() {
			}
			limit := must(rising.Peek(background, "k")).Limit
			if limit < most {
				t.Errorf("%d after %d", limit, most)
			}
			most = limit
			time.Sleep(time.Second / 50)
		}
		if d := must(rising.Peek(background, "k")); d.Limit != 90 {
			t.Errorf("%+v", d)
		}

		adaptive := must(NewAdaptive(AdaptiveOptions{Min: 1, Max: 10}))
		for range 3000 {
			var permits []*Permit
			for {
				permit, err := adaptive.Permit()
				if errors.Is(err, ErrDenied) {
					break
				}
				permits = append(permits, permit)
			}
			time.Sleep(10 * time.Millisecond)
			for _, permit := range permits {
				permit.Done(false)
			}
		}
		if adaptive.Limit() != 10 {
			t.Error(adaptive.Limit())
		}
	})
}

// What was not used goes back to when it was counted, and not to what others have counted since.
func TestSettledInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate, budget := must(New(nil, Quota{Limit: 5, Window: time.Hour})), must(NewBudget(nil, 5, Daily(), nil))
		admitted := func() *Admission {
			return must(Admit(background, []Part{rate.Request("k", 2), budget.Request("b", 2)}))
		}
		settled := func(a *Admission, used, changed, left []int64) {
			t.Helper()
			changes := must(a.Settle(background, used...))
			peeked := []Decision{must(rate.Peek(background, "k")), must(budget.Peek(background, "b"))}
			found := []int64{peeked[0].remaining, peeked[1].remaining}
			if !slices.Equal(changes, changed) || !slices.Equal(found, left) {
				t.Errorf("%v, %v left", changes, found)
			}
		}
		early, late := admitted(), admitted()
		time.Sleep(time.Minute)
		settled(early, []int64{0, 1}, []int64{-2, -1}, []int64{3, 2})
		time.Sleep(24 * time.Hour)
		other := admitted()
		settled(late, []int64{0, 0}, []int64{0, 0}, []int64{3, 3})
		settled(other, []int64{3, 0}, []int64{1, -2}, []int64{2, 5})
	})
}
