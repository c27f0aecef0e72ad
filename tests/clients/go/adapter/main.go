// The Go client for scenarios. Does what the runner says in lines of JSON, and judges nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	swlimit "github.com/swlimit/swlimit/src/clients/go"
)

type object = map[string]any

type client struct {
	conn    *swlimit.Conn
	limiter *swlimit.Limiter
	holds   *swlimit.Holds
	budget  *swlimit.Budget
}

var (
	out     sync.Mutex
	clients sync.Map
	calls   sync.Map
)

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

func failed(id any, err error) object {
	kind := "refused"
	for is, name := range map[error]string{swlimit.ErrUnavailable: "unavailable", swlimit.ErrModuleMissing: "module_missing",
		swlimit.ErrDenied: "denied", context.Canceled: "cancelled", swlimit.ErrArgument: "invalid", swlimit.ErrClosed: "closed"} {
		if errors.Is(err, is) {
			kind = name
		}
	}
	o := object{"id": id, "error": kind, "message": err.Error()}
	var denied *swlimit.DeniedError
	if errors.As(err, &denied) {
		for name, value := range told(denied.Decision) {
			o[name] = value
		}
	}
	return o
}

func duration(o object, name string, usual time.Duration) time.Duration {
	if text, ok := o[name].(string); ok {
		d, _ := time.ParseDuration(text)
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
	o := asked["options"].(object)
	var options []swlimit.Option
	for name, value := range o {
		text, _ := value.(string)
		switch name {
		case "mode":
			options = append(options, swlimit.Mode(swlimit.Decider(text)))
		case "on_failure":
			options = append(options, swlimit.OnFailure(swlimit.Decider(text)))
		case "timeout":
			options = append(options, swlimit.Timeout(duration(o, name, 0)))
		case "max_waiting":
			options = append(options, swlimit.MaxWaiting(int(value.(float64))))
		case "local_share":
			options = append(options, swlimit.LocalShare(value.(float64)))
		}
	}
	addresses := asked["addresses"].(object)
	var transport swlimit.Transport
	if asked["topology"] == "sentinel" {
		var named []string
		for name, addr := range addresses {
			if strings.HasPrefix(name, "N") {
				named = append(named, addr.(string))
			}
		}
		transport = &swlimit.Sentinel{Name: "main", Addrs: named}
	} else {
		transport = swlimit.Server{Addr: addresses["S"].(string)}
	}
	c := &client{conn: swlimit.NewConn(transport)}
	limit := number(o, "limit", 0)
	var err error
	switch asked["kind"] {
	case "hold":
		c.holds, err = swlimit.NewHolds(c.conn, limit, duration(o, "ttl", time.Minute), options...)
	case "budget":
		period := map[string]swlimit.Period{"hour": swlimit.Hourly(), "day": swlimit.Daily(), "month": swlimit.Monthly(1)}
		c.budget, err = swlimit.NewBudget(c.conn, limit, period[o["period"].(string)], nil, options...)
	default:
		c.limiter, err = swlimit.New(c.conn, swlimit.Quota{Limit: limit, Window: duration(o, "window", 0)}, options...)
	}
	return c, err
}

func (c *client) call(ctx context.Context, asked object) (object, error) {
	key, _ := asked["key"].(string)
	cost := number(asked, "cost", 1)
	switch method := asked["method"]; {
	case method == "allow" && c.budget != nil:
		d, err := c.budget.AllowN(ctx, key, cost)
		return told(d), err
	case method == "allow":
		d, err := c.limiter.AllowN(ctx, key, cost)
		return told(d), err
	case method == "acquire": // a denial is an error here, and says what it was
		ctx, cancel := context.WithTimeout(ctx, duration(asked, "timeout", time.Minute))
		defer cancel()
		err := c.limiter.WaitN(ctx, key, cost)
		var denied *swlimit.DeniedError
		if errors.As(err, &denied) {
			return told(denied.Decision), nil
		}
		return object{"granted": cost}, err
	case method == "hold":
		h, err := c.holds.TryAcquireN(ctx, key, cost)
		if err != nil {
			return nil, err
		}
		return object{"granted": cost, "source": h.Source}, nil
	case method == "refund":
		n, err := c.limiter.Refund(ctx, key, number(asked, "units", 1))
		return object{"value": n}, err
	}
	return nil, errors.New("no such method")
}

type logged struct{ slog.Handler }

func (logged) Enabled(context.Context, slog.Level) bool { return true }
func (logged) Handle(_ context.Context, r slog.Record) error {
	event := strings.ToLower(r.Level.String())
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" {
			event = a.Value.String()
		}
		return true
	})
	say(object{"log": event, "text": r.Message})
	return nil
}

func main() {
	slog.SetDefault(slog.New(logged{slog.DiscardHandler}))
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
			say(object{"id": id, "ok": []string{"cancel", "undo", "sentinel", "statistics", "reasons"}})
		case "limiter":
			made, err := made(asked)
			if err != nil {
				say(failed(id, err))
				continue
			}
			clients.Store(asked["client"], made)
			say(object{"id": id, "ok": nil})
		case "call":
			ctx, cancel := context.WithCancel(context.Background())
			calls.Store(id, cancel)
			go func() {
				defer cancel()
				if found, err := c.call(ctx, asked); err != nil {
					say(failed(id, err))
				} else {
					say(object{"id": id, "ok": found})
				}
			}()
		case "cancel":
			if cancel, ok := calls.Load(asked["call"]); ok {
				cancel.(context.CancelFunc)()
			}
		case "statistics":
			var s swlimit.Statistics
			switch {
			case c.limiter != nil:
				s = c.limiter.Statistics()
			case c.holds != nil:
				s = c.holds.Statistics()
			default:
				s = c.budget.Statistics()
			}
			say(object{"id": id, "ok": object{"server": s.Server, "cache": s.Cache, "failure": s.Failure, "local": s.Local}})
		case "health":
			o := object{"state": nil, "reason": nil}
			if states := c.conn.Servers(); len(states) > 0 {
				at := max(0, slices.IndexFunc(states, func(s swlimit.ServerState) bool { return s.State != "up" }))
				o["state"], o["reason"] = states[at].State, states[at].Reason
			}
			say(object{"id": id, "ok": o})
		case "close", "drop":
			go func() {
				if c != nil {
					_ = c.conn.Close()
				}
				say(object{"id": id, "ok": nil})
			}()
		}
	}
}
