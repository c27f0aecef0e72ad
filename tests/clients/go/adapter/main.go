// The Go client for scenarios, or with the argument fakes those for tests. Does what the runner says in lines of JSON, and
// judges nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	swlimit "github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/swlimittest"
)

type object = map[string]any

// A limiter is one of the three kinds.
type limiter struct {
	rate   *swlimit.Limiter
	fake   *swlimittest.Fake // the rate is its
	holds  *swlimit.Holds
	budget *swlimit.Budget
}

type client struct {
	shared   *swlimit.Client
	limiters []limiter
}

var (
	out      sync.Mutex
	clients  sync.Map
	calls    sync.Map
	returned sync.Map // by the number of the call: a hold, an admission
)

var isFake = slices.Contains(os.Args, "fakes")

func say(o object) {
	out.Lock()
	defer out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(o)
}

func ms(d time.Duration) any {
	switch d {
	case swlimit.Never:
		return "never"
	case swlimit.Unknown:
		return nil
	}
	return d.Milliseconds()
}

func told(d swlimit.Decision) object {
	o := object{"granted": d.Granted, "limit": d.Limit, "source": d.Source, "retry_after": ms(d.RetryAfter),
		"reset_after": ms(d.ResetAfter), "remaining": nil}
	if left, known := d.Remaining(); known {
		o["remaining"] = left
	}
	return o
}

func several(granted bool, after time.Duration, each []swlimit.Decision) object {
	all := []object{}
	for _, d := range each {
		all = append(all, told(d))
	}
	return object{"granted": granted, "retry_after": ms(after), "each": all}
}

func failed(id any, err error) object {
	kind := "other"
	for is, name := range map[error]string{swlimit.ErrUnavailable: "unavailable", swlimit.ErrModuleMissing: "module_missing",
		swlimit.ErrDenied: "denied", context.Canceled: "cancelled", swlimit.ErrArgument: "invalid", swlimit.ErrClosed: "closed"} {
		if errors.Is(err, is) {
			kind = name
		}
	}
	var refused swlimit.RefusedError
	if errors.As(err, &refused) {
		kind = "refused"
	}
	o := object{"id": id, "error": kind, "message": err.Error(), "reason": swlimit.ReasonOf(err)}
	var denied *swlimit.DeniedError
	if errors.As(err, &denied) {
		for name, value := range told(denied.Decision) {
			o[name] = value
		}
	}
	return o
}

func duration(o object, name string, usual time.Duration) time.Duration {
	text, _ := o[name].(string)
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return usual
}

func number(o object, name string, usual int64) int64 {
	if n, ok := o[name].(float64); ok {
		return int64(n)
	}
	return usual
}

func made(asked object) (*client, error) {
	var addresses []string
	for _, addr := range asked["addresses"].([]any) {
		addresses = append(addresses, addr.(string))
	}
	var server swlimit.Server
	if secret, ok := asked["secret"].(string); ok {
		server.Username, server.Password = "ann", secret
	}
	var transport swlimit.Transport
	switch asked["topology"] {
	case "sentinel":
		transport = &swlimit.Sentinel{Name: "main", Addrs: addresses, Server: server}
	case "cluster":
		transport = &swlimit.Cluster{Addrs: addresses, Server: server}
	default:
		server.Addr = addresses[0]
		transport = server
	}
	options := []swlimit.ClientOption{swlimit.Logger(slog.New(logged{slog.DiscardHandler, asked["client"]}))}
	for _, o := range asked["limiters"].([]any) {
		if n, ok := o.(object)["max_waiting"].(float64); ok {
			options = append(options, swlimit.MaxWaiting(int(n)))
		}
	}
	shared, err := swlimit.NewClient(transport, options...)
	if err != nil {
		return nil, err
	}
	c := &client{shared: shared}
	clients.Store(asked["client"], c)
	for _, options := range asked["limiters"].([]any) {
		one, err := c.limiter(options.(object))
		if err != nil {
			return c, err
		}
		c.limiters = append(c.limiters, one)
	}
	return c, nil
}

func (c *client) limiter(o object) (one limiter, err error) {
	var options []swlimit.Option
	for name, value := range o {
		text, _ := value.(string)
		switch name {
		case "mode":
			options = append(options, swlimit.Mode(text))
		case "on_failure":
			options = append(options, swlimit.OnFailure(swlimit.FailurePolicy(text)))
		case "timeout":
			options = append(options, swlimit.Timeout(duration(o, name, 0)))
		case "sync_interval":
			options = append(options, swlimit.SyncInterval(duration(o, name, 0)))
		case "max_untracked_age":
			options = append(options, swlimit.MaxUntrackedAge(duration(o, name, 0)))
		case "warm_up":
			options = append(options, swlimit.WarmUp(duration(o, name, 0)))
		case "cold":
			options = append(options, swlimit.Cold(int64(value.(float64))))
		case "block_for":
			options = append(options, swlimit.BlockFor(duration(o, name, 0)))
		case "max_keys":
			options = append(options, swlimit.MaxKeys(int64(value.(float64))))
		case "local_share":
			options = append(options, swlimit.LocalShare(value.(float64)))
		}
	}
	shared, limit := c.shared, number(o, "limit", 0)
	if o["mode"] == "local" {
		shared = nil
	}
	switch o["kind"] {
	case "hold":
		one.holds, err = swlimit.NewHolds(shared, limit, duration(o, "ttl", time.Minute), options...)
	case "budget":
		period := map[string]swlimit.Period{"hour": swlimit.Hourly(), "day": swlimit.Daily(), "month": swlimit.Monthly(1)}
		one.budget, err = swlimit.NewBudget(shared, limit, period[o["period"].(string)], nil, options...)
	default:
		quota := swlimit.Quota{Limit: limit, Window: duration(o, "window", 0)}
		if isFake {
			one.fake = swlimittest.New(quota)
			one.rate = one.fake.Limiter
			break
		}
		one.rate, err = swlimit.New(shared, quota, options...)
	}
	return one, err
}

func (c *client) call(ctx context.Context, asked object) (object, error) {
	o := asked["options"].(object)
	var keys []string
	for _, key := range asked["keys"].([]any) {
		keys = append(keys, key.(string))
	}
	one, cost := c.limiters[int(asked["limiter"].(float64))], number(o, "cost", 1)
	of, _ := returned.Load(o["of"])
	switch method := asked["method"]; method {
	case "allow_all":
		var requests []swlimit.Request
		for i, key := range keys {
			requests = append(requests, c.limiters[i].rate.Request(key, cost))
		}
		d, err := swlimit.AllowAll(ctx, requests...)
		return several(d.Allowed, d.RetryAfter(), d.Each), err
	case "deny":
		one.fake.Deny(duration(o, "retry_after", swlimit.Never), keys...)
		return object{"value": nil}, nil
	case "grant":
		one.fake.Grant(keys...)
		return object{"value": nil}, nil
	case "admit":
		var parts []swlimit.Part
		for i, key := range keys {
			parts = append(parts, c.limiters[i].part(key, cost))
		}
		var options []swlimit.AdmitOption
		if _, ok := o["wait"]; ok {
			options = append(options, swlimit.WaitFor(duration(o, "wait", 0)))
		}
		a, err := swlimit.Admit(ctx, parts, options...)
		if err != nil {
			return nil, err
		}
		returned.Store(asked["id"], a)
		return several(a.Allowed, a.RetryAfter(), a.Each), nil
	case "settle":
		var used []int64
		for _, n := range o["used"].([]any) {
			used = append(used, int64(n.(float64)))
		}
		changes, err := of.(*swlimit.Admission).Settle(ctx, used...)
		return object{"value": changes}, err
	case "release":
		of.(interface{ Release() }).Release()
		return object{"value": nil}, nil
	case "is_live":
		return object{"value": of.(*swlimit.Hold).Live()}, nil
	case "hold":
		take := one.holds.TryAcquireN
		if _, waits := o["wait"]; waits {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, duration(o, "wait", 0))
			defer cancel()
			take = one.holds.AcquireN
		}
		h, err := take(ctx, keys[0], cost)
		if err != nil {
			return nil, err
		}
		returned.Store(asked["id"], h)
		return object{"granted": cost, "source": h.Source}, nil
	}
	if times := number(o, "times", 0); times > 0 {
		return one.burst(ctx, keys[0], times)
	}
	if one.budget != nil {
		return one.ofBudget(ctx, asked["method"].(string), keys[0], cost, o)
	}
	return one.ofRate(ctx, asked["method"].(string), keys[0], cost, o)
}

func (one limiter) part(key string, cost int64) swlimit.Part {
	switch {
	case one.rate != nil:
		return one.rate.Request(key, cost)
	case one.budget != nil:
		return one.budget.Request(key, cost)
	}
	return one.holds.Request(key, cost)
}

// burst asks so often at once, and counts the decisions by their source.
func (one limiter) burst(ctx context.Context, key string, times int64) (object, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	counts := map[swlimit.Source]int{}
	for range times {
		all.Go(func() {
			d, _ := one.rate.Allow(ctx, key)
			mu.Lock()
			counts[d.Source]++
			mu.Unlock()
		})
	}
	all.Wait()
	o := object{}
	for source, n := range counts {
		o[string(source)] = n
	}
	return o, nil
}

func (one limiter) ofBudget(ctx context.Context, method, key string, cost int64, o object) (object, error) {
	ask := map[string]func(context.Context, string, int64) (swlimit.Decision, error){
		"allow": one.budget.AllowN, "record": one.budget.Record, "peek": one.budget.PeekN}[method]
	if method == "refund" {
		n, err := one.budget.Refund(ctx, key, number(o, "units", 1))
		return object{"value": n}, err
	}
	d, err := ask(ctx, key, cost)
	return told(d), err
}

func (one limiter) ofRate(ctx context.Context, method, key string, cost int64, o object) (object, error) {
	ask := map[string]func(context.Context, string, int64) (swlimit.Decision, error){
		"allow": one.rate.AllowN, "record": one.rate.Record, "peek": one.rate.PeekN}[method]
	switch method {
	case "acquire": // a denial is an error here, and says what it was
		ctx, cancel := context.WithTimeout(ctx, duration(o, "timeout", time.Minute))
		defer cancel()
		if err := one.rate.WaitN(ctx, key, cost); err != nil {
			return nil, err
		}
		return object{"granted": cost}, nil
	case "refund":
		n, err := one.rate.Refund(ctx, key, number(o, "units", 1))
		return object{"value": n}, err
	case "block":
		_, err := one.rate.Block(ctx, key, duration(o, "duration", 0))
		return object{"value": nil}, err
	case "unblock":
		was, err := one.rate.Unblock(ctx, key)
		return object{"value": was}, err
	case "reset":
		return object{"value": nil}, one.rate.Reset(ctx, key)
	}
	if _, ok := o["deadline"]; ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, duration(o, "deadline", 0))
		defer cancel()
	}
	if o["partial"] == true {
		ask = one.rate.AllowAtMost
	}
	d, err := ask(ctx, key, cost)
	return told(d), err
}

func (c *client) statistics() object {
	o := map[string]int64{}
	for _, one := range c.limiters {
		var s swlimit.Statistics
		switch {
		case one.rate != nil:
			s = one.rate.Statistics()
		case one.holds != nil:
			s = one.holds.Statistics()
		default:
			s = one.budget.Statistics()
		}
		for source, n := range s.By() {
			o[string(source)] += n.Granted + n.Denied
		}
		o["evicted"] += s.Evicted
	}
	return object{"server": o["server"], "cache": o["cache"], "failure": o["failure"], "local": o["local"], "eventual": o["eventual"],
		"evicted": o["evicted"]}
}

// logged says what one client logs.
type logged struct {
	slog.Handler
	client any
}

func (logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) Handle(_ context.Context, r slog.Record) error {
	fields := object{}
	r.Attrs(func(a slog.Attr) bool {
		fields[a.Key] = a.Value.String()
		return true
	})
	say(object{"log": r.Message, "fields": fields, "client": l.client})
	return nil
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var asked object
		_ = json.Unmarshal(in.Bytes(), &asked)
		id := asked["id"]
		var c *client
		if found, ok := clients.Load(asked["client"]); ok {
			c = found.(*client)
		}
		switch asked["do"] {
		case "hello":
			able := []string{"cancel", "cancel_refund", "undo", "sentinel", "cluster", "url", "statistics", "reasons", "logs",
				"partial", "deadline", "timeouts", "burst", "tracking", "guards", "local_blocks", "settle", "eventual", "record"}
			if isFake {
				able = append(able, "deny")
			}
			say(object{"id": id, "ok": able})
		case "limiters":
			if _, err := made(asked); err != nil {
				say(failed(id, err))
				continue
			}
			say(object{"id": id, "ok": nil})
		case "call":
			ctx, cancel := context.WithCancel(context.Background())
			calls.Store(id, cancel)
			answer := func() {
				defer cancel()
				if found, err := c.call(ctx, asked); err != nil {
					say(failed(id, err))
				} else {
					say(object{"id": id, "ok": found})
				}
			}
			if isFake { // which answers at once
				answer()
			} else {
				go answer()
			}
		case "cancel":
			if cancel, ok := calls.Load(asked["call"]); ok {
				cancel.(context.CancelFunc)()
			}
		case "statistics":
			say(object{"id": id, "ok": c.statistics()})
		case "health":
			o := object{"state": nil, "reason": nil}
			if states := c.shared.Servers(); len(states) > 0 {
				at := max(0, slices.IndexFunc(states, func(s swlimit.ServerState) bool { return s.State != "up" }))
				o["state"], o["reason"] = states[at].State, states[at].Reason
			}
			say(object{"id": id, "ok": o})
		case "close", "drop":
			go func() {
				if c != nil {
					_ = c.shared.Close()
				}
				say(object{"id": id, "ok": nil})
			}()
		}
	}
}
