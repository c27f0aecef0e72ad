package swlimit

import (
	"context"
	"slices"
)

// A Request is one of the limits that [AllowAll] decides.
type Request struct {
	limiter *Limiter
	key     string
	cost    int64
}

// Request is n units of a key, for AllowAll.
func (l *Limiter) Request(key string, n int64) Request { return Request{l, key, n} }

// AllowAll decides several limits at once: all or nothing. All limiters have the same Client, and in a cluster all keys
// are of one slot.
func AllowAll(ctx context.Context, requests ...Request) (Decisions, error) {
	if err := checkAll(ctx, requests); err != nil {
		return Decisions{}, err
	}
	a, err := allOf(requests).decide(ctx)
	if err != nil {
		return Decisions{}, err
	}
	decisions := Decisions{Allowed: a.allowed}
	for i, r := range a.replies {
		decisions.Each = append(decisions.Each, requests[i].limiter.decided(r, a.source))
	}
	return decisions, nil
}

// allOf are limits that are decided at once.
type allOf []Request

// answer is what all limits say, not counted as decisions yet.
type answer struct {
	allowed bool
	replies []reply
	source  Source
}

// decide decides all at once.
func (all allOf) decide(ctx context.Context) (answer, error) {
	rates := make([]rate, len(all))
	for i, r := range all {
		rates[i] = rate{r.limiter.prefix + r.key, demand{r.limiter.quota, r.cost, false}}
	}
	first := all[0].limiter
	if first.client == nil {
		return all.decideHere(rates, FromLocal)
	}
	if known, ok := all.knownDenials(rates); ok {
		return known, nil
	}
	asked := make([]question, len(rates))
	p, _ := first.client.primary(ctx, rates[0].key, first.timeout)
	for i := range rates {
		asked[i] = first.client.denials.ask(rates[i].key, p != nil && p.tracker.isOpen())
	}
	raw, err := first.decide(ctx, mallowCommand(rates))
	if err != nil {
		for _, r := range all {
			if !r.limiter.decides(err) {
				keep(err)
				return answer{}, err
			}
		}
		a, failed := all.decideHere(rates, FromFailure)
		kept := make([]int64, len(a.replies))
		for i, r := range a.replies {
			if a.allowed {
				kept[i] = r.granted
			}
		}
		keep(err, kept...)
		return a, failed
	}
	list, _ := raw.([]any)
	if len(list) != 1+len(rates) {
		return answer{}, unexpected(raw)
	}
	a := answer{list[0] == int64(1), make([]reply, len(rates)), FromServer}
	for i, each := range list[1:] {
		r, err := replyOf(each)
		if err != nil {
			return answer{}, err
		}
		l := all[i].limiter
		if r.granted == 0 && p != nil && l.mode == Cached {
			p.tracker.denied(rates[i].key, &rates[i].demand, r, asked[i], 0, l.settings)
		}
		a.replies[i] = r
	}
	return a, nil
}

func checkAll(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return wrong("several limits need at least one request")
	}
	first := requests[0].limiter
	if first == nil {
		return errNotMade
	}
	names := map[string]bool{}
	for _, r := range requests {
		if err := r.limiter.check(ctx, r.cost); err != nil {
			return err
		}
		if r.limiter.client != first.client {
			return wrong("limits that are decided at once need the same Client")
		}
		if r.limiter.quota.strict != first.quota.strict {
			return wrong("limits that are decided at once must all be strict or none")
		}
		if r.limiter.block != 0 {
			return wrong("limits that are decided at once do not block")
		}
		names[r.limiter.prefix+r.key] = true
	}
	if len(names) < len(requests) {
		return wrong("a key is named twice")
	}
	return nil
}

// knownDenials are the decisions where one of them is known to be denied; of the others no more is known than the
// limit.
func (all allOf) knownDenials(rates []rate) (answer, bool) {
	found := false
	each := make([]reply, len(rates))
	for i := range rates {
		each[i] = unknown(0, rates[i].limit, unknownMS)
		if l := all[i].limiter; l.mode == Cached {
			if r, ok := l.client.denials.find(rates[i].key, &rates[i].demand, false); ok {
				each[i], found = r, true
			}
		}
	}
	return answer{false, each, FromCache}, found
}

// decideHere looks at all, and counts only if all grant.
func (all allOf) decideHere(rates []rate, source Source) (answer, error) {
	entries, unlock := all.lock()
	defer unlock()
	at := clock()
	decide := func(how func(i int, d *demand) (reply, error)) ([]reply, bool, error) {
		replies, granted := make([]reply, len(rates)), true
		for i := range rates {
			wanted := rates[i].demand
			count := func(limit int64) (reply, error) {
				wanted.limit = limit
				return how(i, &wanted)
			}
			var err error
			if source == FromLocal {
				replies[i], err = count(wanted.limit)
			} else {
				replies[i], err = all[i].limiter.instead(wanted.limit, wanted.cost, count)
			}
			if err != nil {
				return nil, false, err
			}
			granted = granted && replies[i].granted > 0
		}
		return replies, granted, nil
	}
	replies, granted, err := decide(func(i int, d *demand) (reply, error) {
		if f := all[i].limiter.windows.fake; f != nil {
			return f.peek("allow", all[i].key, *d)
		}
		return entries[i].peek(d, at)
	})
	if err == nil && granted {
		replies, _, err = decide(func(i int, d *demand) (reply, error) { return entries[i].allow(d, at, 0) })
	}
	return answer{granted, replies, source}, err
}

// lock locks what each key holds. Each lock is taken once, and all callers take them in one order.
func (all allOf) lock() ([]*entry, func()) {
	type lock struct {
		windows *windows
		shard   uint64
	}
	var locks []lock
	shard := func(r Request) uint64 { return r.limiter.windows.shard(remembered(r.key)) }
	for _, r := range all {
		if at := (lock{r.limiter.windows, shard(r)}); !slices.Contains(locks, at) {
			locks = append(locks, at)
		}
	}
	slices.SortFunc(locks, func(a, b lock) int {
		if a.windows.number != b.windows.number {
			return int(a.windows.number) - int(b.windows.number)
		}
		return int(a.shard) - int(b.shard)
	})
	for _, at := range locks {
		at.windows.shards[at.shard].mu.Lock()
	}
	entries := make([]*entry, len(all))
	for i, r := range all {
		entries[i] = r.limiter.windows.entry(shard(r), remembered(r.key))
	}
	return entries, func() {
		for _, at := range locks {
			at.windows.shards[at.shard].mu.Unlock()
		}
	}
}
