// Package swlimittest is for tests of programs that limit: a limiter that denies on demand. The clock of package
// testing/synctest is the one of all limiters without a [swlimit.Client].
package swlimittest

import (
	"slices"
	"sync"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/internal/fakes"
)

// A Call is one call of a [Fake]'s limiter.
type Call struct {
	// Method is allow (of AllowAll for each limit, and of Admit), peek, record, wait, refund, block, unblock or reset.
	Method string
	// Key is the key without the limiter's prefix.
	Key string
	// Cost is the cost, or the units of a refund; 0 where a method has neither.
	Cost int64
}

// A Fake has a limiter that grants everything until the test says otherwise, and records its calls. It answers
// what a limiter does for a key for which nothing is counted yet, or which is blocked: a cost above the limit is denied,
// AllowAtMost gets the limit. Wait decides at once. The program takes the Limiter, as middleware, AllowAll and Admit do.
type Fake struct {
	*swlimit.Limiter
	answers answers
}

// New returns a fake whose decisions show a quota; without one, 100 a minute. It panics where [swlimit.New] returns an
// error.
func New(q swlimit.Quota, options ...swlimit.Option) *Fake {
	if q == (swlimit.Quota{}) {
		q = swlimit.Quota{Limit: 100, Window: time.Minute}
	}
	limiter, err := swlimit.New(nil, q, options...)
	if err != nil {
		panic(err)
	}
	f := &Fake{Limiter: limiter}
	f.Grant()
	fakes.Answer(limiter, &f.answers)
	return f
}

// Deny denies requests for these keys from now on, for 1 ms at least. Without any it denies all requests, and forgets
// what was said before: by Deny, DenyNext and Grant, and the program's blocks. With [swlimit.Never] they can never be
// granted.
func (f *Fake) Deny(retryAfter time.Duration, keys ...string) {
	a := &f.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(keys) == 0 {
		a.forget()
		a.others = denial(retryAfter)
	}
	for _, key := range keys {
		a.denied[key] = denial(retryAfter)
	}
}

// DenyNext denies the next n requests, whatever their keys, as Deny does.
func (f *Fake) DenyNext(n int, retryAfter time.Duration) {
	f.answers.mu.Lock()
	defer f.answers.mu.Unlock()
	f.answers.next, f.answers.nextFor = n, denial(retryAfter)
}

// Grant grants requests for these keys again, without any all requests; also where the program has blocked them.
func (f *Fake) Grant(keys ...string) {
	a := &f.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(keys) == 0 {
		a.forget()
	}
	for _, key := range keys {
		a.denied[key] = 0
		delete(a.blocked, key)
	}
}

// Calls are those of the limiter, oldest first.
func (f *Fake) Calls() []Call {
	f.answers.mu.Lock()
	defer f.answers.mu.Unlock()
	return slices.Clone(f.answers.calls)
}

// answers are what the test and the program have said.
type answers struct {
	mu      sync.Mutex
	calls   []Call
	denied  map[string]time.Duration
	others  time.Duration
	next    int
	nextFor time.Duration
	blocked map[string]time.Time // until when
}

func (a *answers) forget() {
	a.denied, a.blocked, a.others, a.next = map[string]time.Duration{}, map[string]time.Time{}, 0, 0
}

// denial is a time that denies: whole milliseconds hold it.
func denial(retryAfter time.Duration) time.Duration {
	if retryAfter > swlimit.Never-time.Millisecond {
		return swlimit.Never
	}
	return max(retryAfter, time.Millisecond)
}

var decides = []string{"allow", "peek", "record", "wait"}

func (a *answers) Called(method, key string, cost int64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, Call{method, key, cost})
	if a.next > 0 && slices.Contains(decides, method) {
		a.next--
		return a.nextFor
	}
	denied, ok := a.denied[key]
	if !ok {
		denied = a.others
	}
	return max(denied, time.Until(a.blocked[key]), 0)
}

func (a *answers) Block(key string, d time.Duration, unlessBlocked bool) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if left := time.Until(a.blocked[key]); unlessBlocked && left > 0 {
		return left
	}
	a.blocked[key] = time.Now().Add(d)
	return d
}

func (a *answers) Unblock(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := time.Until(a.blocked[key]) > 0
	delete(a.blocked, key)
	return was
}
