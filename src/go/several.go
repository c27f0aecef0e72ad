package swlimit

import (
	"context"
	"hash/maphash"
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

// AllowAll decides several limits at once: all or nothing. All limiters have the same Conn, and in a cluster all keys
// are of one slot.
func AllowAll(ctx context.Context, requests ...Request) (Decisions, error) {
	if err := checkAll(ctx, requests); err != nil {
		return Decisions{}, err
	}
	first := requests[0].limiter
	rates := make([]rate, len(requests))
	for i, r := range requests {
		rates[i] = rate{r.limiter.prefix + r.key, demand{r.limiter.quota, r.cost, false}}
	}
	if first.conn == nil {
		return decideHere(requests, rates, FromLocal)
	}
	if known, ok := knownDenials(requests, rates); ok {
		return known, nil
	}
	asked := make([]question, len(rates))
	p, _ := first.conn.primary(ctx, rates[0].key, first.timeout)
	for i := range rates {
		asked[i] = first.conn.denials.ask(rates[i].key, p != nil && p.tracker.isOpen())
	}
	raw, err := first.ask(ctx, mallowCommand(rates))
	if err != nil {
		for _, r := range requests {
			if !r.limiter.decides(err) {
				return Decisions{}, err
			}
		}
		return decideHere(requests, rates, FromFailure)
	}
	list, _ := raw.([]any)
	if len(list) != 1+len(rates) {
		return Decisions{}, unexpected(raw)
	}
	decisions := Decisions{Allowed: list[0] == int64(1)}
	for i, each := range list[1:] {
		r, err := replyOf(each)
		if err != nil {
			return Decisions{}, err
		}
		l := requests[i].limiter
		if r.granted == 0 && p != nil && l.mode == Cached {
			p.tracker.denied(rates[i].key, &rates[i].demand, r, asked[i], 0, l.settings)
		}
		decisions.Each = append(decisions.Each, l.decided(r, FromServer))
	}
	return decisions, nil
}

func checkAll(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return wrong("several limits need at least one request")
	}
	first := requests[0].limiter
	names := map[string]bool{}
	for _, r := range requests {
		if err := r.limiter.check(ctx, r.cost); err != nil {
			return err
		}
		if r.limiter.conn != first.conn {
			return wrong("limits that are decided at once need the same Conn")
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
func knownDenials(requests []Request, rates []rate) (Decisions, bool) {
	found := false
	each := make([]reply, len(rates))
	for i := range rates {
		each[i] = unknown(0, rates[i].limit, unknownMS)
		if l := requests[i].limiter; l.mode == Cached {
			if r, ok := l.conn.denials.find(rates[i].key, &rates[i].demand, false); ok {
				each[i], found = r, true
			}
		}
	}
	if !found {
		return Decisions{}, false
	}
	var decisions Decisions
	for i, r := range each {
		decisions.Each = append(decisions.Each, requests[i].limiter.decided(r, FromCache))
	}
	return decisions, true
}

// decideHere looks at all, and counts only if all grant.
func decideHere(requests []Request, rates []rate, source Source) (Decisions, error) {
	entries, unlock := lockAll(requests)
	defer unlock()
	at := clock()
	decide := func(how func(*entry, *demand) (reply, error)) ([]reply, bool, error) {
		replies, all := make([]reply, len(rates)), true
		for i := range rates {
			wanted := rates[i].demand
			count := func(limit int64) (reply, error) {
				wanted.limit = limit
				return how(entries[i], &wanted)
			}
			var err error
			if source == FromLocal {
				replies[i], err = count(wanted.limit)
			} else {
				replies[i], err = requests[i].limiter.instead(wanted.limit, wanted.cost, count)
			}
			if err != nil {
				return nil, false, err
			}
			all = all && replies[i].granted > 0
		}
		return replies, all, nil
	}
	replies, all, err := decide(func(e *entry, d *demand) (reply, error) { return e.peek(d, at) })
	if err == nil && all {
		replies, _, err = decide(func(e *entry, d *demand) (reply, error) { return e.allow(d, at, 0) })
	}
	if err != nil {
		return Decisions{}, err
	}
	decisions := Decisions{Allowed: all}
	for i, r := range replies {
		decisions.Each = append(decisions.Each, requests[i].limiter.decided(r, source))
	}
	return decisions, nil
}

// lockAll locks what each key holds. Each lock is taken once, and all callers take them in one order.
func lockAll(requests []Request) ([]*entry, func()) {
	type lock struct {
		windows *windows
		shard   uint64
	}
	var locks []lock
	shard := func(r Request) uint64 {
		return maphash.String(r.limiter.windows.seed, remembered(r.key)) % shards
	}
	for _, r := range requests {
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
	entries := make([]*entry, len(requests))
	for i, r := range requests {
		entries[i] = r.limiter.windows.entry(shard(r), remembered(r.key))
	}
	return entries, func() {
		for _, at := range locks {
			at.windows.shards[at.shard].mu.Unlock()
		}
	}
}
