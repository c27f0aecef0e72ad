package swlimit

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

const (
	reservedFor      = 15_000 // ms that a reservation lasts unrenewed, where no part is a hold
	longestHoldRetry = time.Second
	admissionJitter  = 5 // who waits asks up to a fifth later: those denied together do not come together
)

// An AdmitOption changes what [Admit] or [Spend] does.
type AdmitOption func(*admitting) error

// admitting are the options of Admit and Spend.
type admitting struct {
	maxAge, wait time.Duration
	onError      ErrorPolicy
}

// MaxAge is for how long an admission is renewed at most, in whole milliseconds, because news of its end may never
// come. Then its holds and its reservation end by their time to live, and the holds are lost. What was counted stays
// counted.
func MaxAge(d time.Duration) AdmitOption {
	return func(o *admitting) error {
		o.maxAge = d
		_, err := milliseconds(d, "max age", 1)
		return err
	}
}

// WaitFor has a denied admission asked again, for so long in whole milliseconds, and not beyond the context's deadline.
// Those who wait for a hold in the server's queue go first.
func WaitFor(d time.Duration) AdmitOption {
	return func(o *admitting) error {
		o.wait = d
		_, err := milliseconds(d, "wait", 0)
		return err
	}
}

// An Admission is the answer to all parts together.
type Admission struct {
	// Allowed tells whether all granted; else nothing was counted anywhere.
	Allowed bool
	// Each holds what each part says, in order.
	Each []Decision
	// Holds are the holds among the parts, in order. Each is lost for itself, and ends by its own Release. Without a
	// grant there are none.
	Holds []*Hold

	client  *Client
	parts   []Part
	labels  []string // their names; "" where they have none
	strict  bool
	options admitting

	reserve     *holdRequest // asks for the reservation
	reservation *Hold        // under which the server remembers what was counted, until that is settled
	sent        time.Duration
	timeout     time.Duration
	mu          sync.Mutex
	settled     bool
}

// Admit decides rates, budgets and holds at once: all or nothing. All parts have the same Client, and in a cluster all
// keys are of one slot. Settle corrects what was counted by what was really used.
//
// With a hold or MaxAge, what rates and budgets count is reserved at the server, under a key of its own beside that of
// the first part: so Settle corrects it once, even if replies are lost, and after the holds were released, too. The
// reservation lasts as long as this process keeps the Admission.
func Admit(ctx context.Context, parts []Part, options ...AdmitOption) (*Admission, error) {
	return admit(ctx, parts, options, false)
}

func admit(ctx context.Context, parts []Part, options []AdmitOption, spends bool) (*Admission, error) {
	a := &Admission{options: admitting{onError: Keep}}
	for _, option := range options {
		if option == nil {
			return nil, wrong("an option is nil")
		}
		if err := option(&a.options); err != nil {
			return nil, err
		}
	}
	if err := a.take(parts); err != nil {
		return nil, err
	}
	a.reserves(spends)
	until := now() + a.options.wait
	left := func() time.Duration { return timeFor(ctx, until-now()) }
	waits := waiter[*Admission]{
		client: a.client, left: left,
		ask: func(waited bool) (*Admission, bool, error) {
			if waited && left() <= 0 {
				return a, false, errNoTime
			}
			if err := a.decide(ctx, waited); err != nil {
				return a, false, err
			}
			return a, a.Allowed || !a.fitsWithin(left()) || !waited && a.Each[0].Source == FromFailure, nil
		},
		rest: func(*Admission) (*Admission, bool, error) {
			pause := poll
			if after := a.RetryAfter(); after != Unknown {
				pause = min(poll, after)
			}
			return a, false, a.client.pause(ctx, min(pause+rand.N(pause/admissionJitter+1), left()))
		},
		decides: func() bool { return false }, // decide has asked the policy
	}
	if _, err := waits.run(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// fitsWithin tells whether it may be granted within so much time. Holds may be released at any moment.
func (a *Admission) fitsWithin(left time.Duration) bool {
	for i, part := range a.parts {
		_, held := part.(*holdRequest)
		after := a.Each[i].RetryAfter
		if a.Each[i].Granted == 0 && (after == Never || !held && after > left) {
			return false
		}
	}
	return left > 0
}

// take checks the parts, and takes their names off.
func (a *Admission) take(parts []Part) error {
	if len(parts) == 0 {
		return wrong("an admission needs at least one part")
	}
	names, labels, rates := map[string]bool{}, map[string]bool{}, 0
	for _, part := range parts {
		label := ""
		if named, ok := part.(*namedPart); ok {
			if part, label = named.Part, named.label; label == "" || labels[label] {
				return wrong("the names of parts must differ, and must not be empty: %q", label)
			}
			labels[label] = true
		}
		if isNil(part) || part.asked().settings == nil {
			return errNotMade
		}
		a.parts, a.labels = append(a.parts, part), append(a.labels, label)
		if err := integer(part.units(), "cost", 1); err != nil {
			return err
		}
		if err := integer(part.limited(), "limit", 0); err != nil {
			return err
		}
		if part.asked().client != a.parts[0].asked().client {
			return wrong("limits that are decided at once need the same Client")
		}
		names[part.name()] = true
		if part, ok := part.(Request); ok {
			if rates++; rates > 1 && part.limiter.quota.strict != a.strict {
				return wrong("limits that are decided at once must all be strict or none")
			}
			if part.limiter.block != 0 {
				return wrong("limits that are decided at once do not block")
			}
			a.strict = part.limiter.quota.strict
		}
	}
	if len(names) < len(parts) {
		return wrong("a key is named twice")
	}
	a.client = a.parts[0].asked().client
	for _, part := range a.parts {
		a.timeout = max(a.timeout, part.asked().timeout)
	}
	return nil
}

// reserves decides whether there is a reservation: always for Spend, else with holds or MaxAge.
func (a *Admission) reserves(always bool) {
	ttl, holds := int64(0), 0
	for _, part := range a.parts {
		if held, ok := part.(*holdRequest); ok {
			ttl = max(ttl, held.holds.ttl)
			holds++
		}
	}
	if holds == len(a.parts) || !(always || holds > 0 || a.options.maxAge > 0) {
		return
	}
	if holds == 0 {
		ttl = reservedFor
	}
	own := a.parts[0].asked()
	settings := *own.settings
	settings.prefix = ""
	own.settings = &settings
	a.reserve = &holdRequest{&Holds{asker: own, limit: maxExact, ttl: ttl}, beside(a.parts[0].name(), "reserved"), 1}
}

// beside is the name of another key in the slot of a key.
func beside(name, suffix string) string {
	if !isTagged(name) {
		name = "{" + name + "}"
	}
	return name + ":" + suffix
}

// decide asks the server, or decides in its place. waited tells whether it was denied before: that stands when the time
// ends.
func (a *Admission) decide(ctx context.Context, waited bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	a.sent = now()
	if a.client == nil {
		return a.decideHere(ctx, FromLocal)
	}
	asked := a.parts
	if a.reserve != nil {
		asked = append([]Part{a.reserve}, a.parts...)
	}
	id, since := freshID(), sinceBoot()
	raw, err := inForce(func(later bool) (any, error) {
		clauses := make([]clause, len(asked))
		for i, part := range asked {
			clauses[i] = part.clause(id, later)
		}
		return a.client.ask(ctx, admitCommand(clauses, a.strict), asking{timeout: a.timeout, decides: true})
	})
	if err != nil {
		if waited && isTimeUp(err) {
			keep(err)
			return err
		}
		for _, part := range a.parts {
			if !part.asked().decides(err) {
				keep(err)
				return err
			}
		}
		failed := a.decideHere(ctx, FromFailure)
		var kept []int64
		if a.Allowed {
			for _, each := range a.Each {
				kept = append(kept, each.Granted)
			}
		}
		keep(err, kept...)
		return failed
	}
	list, _ := raw.([]any)
	if len(list) != 1+len(asked) {
		return unexpected(raw)
	}
	a.Allowed, a.Each = list[0] == int64(1), nil
	for i, part := range asked {
		r, err := part.told(list[1+i])
		if err != nil {
			return err
		}
		if part != Part(a.reserve) {
			a.Each = append(a.Each, part.asked().decided(r, FromServer))
		}
		if held, ok := part.(*holdRequest); ok && a.Allowed {
			if err := a.keep(ctx, held, id, list[1+i], since); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep has a hold that was granted renewed.
func (a *Admission) keep(ctx context.Context, asked *holdRequest, id string, raw any, since time.Duration) error {
	numbers, _ := integersOf(raw, 6)
	hold, err := asked.holds.renewed(ctx, asked.wish(id), numbers[5], since, a.options.maxAge)
	switch {
	case err != nil:
		return err
	case asked != a.reserve:
		a.Holds = append(a.Holds, hold)
	default:
		a.reservation = hold
		runtime.AddCleanup(a, (*Hold).ReleaseSoon, hold)
	}
	return nil
}

// decideHere takes each part in this process, and gives all back where one does not fit.
func (a *Admission) decideHere(ctx context.Context, source Source) error {
	a.Allowed, a.Each = true, nil
	for i, part := range a.parts {
		r, err := part.here(source == FromLocal)
		if err == nil {
			a.Each = append(a.Each, part.asked().decided(r, source))
		}
		if err == nil && r.granted > 0 {
			continue
		}
		for _, taken := range a.parts[:i] {
			takeBack(taken)
		}
		a.Allowed = false
		if err != nil {
			return err
		}
		for _, other := range a.parts[i+1:] {
			r := unknown(0, other.limited(), unknownMS)
			a.Each = append(a.Each, other.asked().decided(r, source))
		}
		return nil
	}
	id := freshID()
	for _, part := range a.parts {
		if held, ok := part.(*holdRequest); ok {
			hold := held.holds.made(ctx, held.wish(id), source)
			hold.release = func() { takeBack(part) }
			hold.endAfter(a.options.maxAge)
			a.Holds = append(a.Holds, hold)
		}
	}
	return nil
}

// DeniedBy is the part that denied, with its decision: of several the one that has to be waited for longest. It is nil
// where all granted.
func (a *Admission) DeniedBy() *DeniedError {
	if a == nil || a.Allowed {
		return nil
	}
	longest := &DeniedError{Decision: Decision{RetryAfter: Unknown - 1}, again: Unknown}
	for i, each := range a.Each {
		if each.Granted > 0 {
			continue
		}
		if each.RetryAfter > longest.Decision.RetryAfter {
			if longest.Decision, longest.Part = each, a.labels[i]; longest.Part == "" {
				longest.Part = a.parts[i].asked().settings.name
			}
		}
		again := each.RetryAfter
		if _, ok := a.parts[i].(*holdRequest); ok && again != Never {
			again = min(again, longestHoldRetry)
		}
		longest.again = max(longest.again, again)
	}
	return longest
}

// RetryAfter is the time until all would grant, as far as is known: 0, Never where one never can, or Unknown.
func (a *Admission) RetryAfter() time.Duration {
	switch {
	case a == nil:
		return Unknown
	case a.Allowed:
		return 0
	}
	return Decisions{Each: a.Each}.RetryAfter()
}

// Release ends the holds, and leaves all else counted as it is. Settle may still come.
func (a *Admission) Release() {
	if a == nil {
		return
	}
	for _, hold := range a.Holds {
		hold.Release()
	}
}

// ReleaseSoon is Release that waits for nothing: Close of the Client waits for it.
func (a *Admission) ReleaseSoon() {
	if a == nil {
		return
	}
	for _, hold := range a.Holds {
		hold.ReleaseSoon()
	}
}
