package swlimit

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRatesAsText(t *testing.T) {
	type text struct {
		Text, Error string
		Rates       [][2]int64
		Rate        [2]int64
	}
	var cases struct {
		Texts, Single []text
		Names         []struct {
			Prefix, Key, Name, Error string
			Window                   int64 `json:"window_ms"`
		}
	}
	vectors(t, "rates", &cases)
	sentence := func(err error) string {
		if !errors.Is(err, ErrArgument) {
			return ""
		}
		return strings.TrimPrefix(err.Error(), ErrArgument.Error()+": ")
	}
	for _, c := range append(cases.Texts, cases.Single...) {
		var got [][2]int64
		found, err := parseRates(c.Text)
		if c.Rates == nil && c.Rate != [2]int64{} {
			c.Rates = [][2]int64{c.Rate}
		}
		if len(c.Rates) == 1 || strings.Contains(c.Error, "a limiter takes one") {
			var one Quota
			one, err = ParseQuota(c.Text)
			found = []Quota{one}
		}
		for _, q := range found {
			got = append(got, [2]int64{q.Limit, q.Window.Milliseconds()})
		}
		if sentence(err) != c.Error || err == nil && !reflect.DeepEqual(got, c.Rates) {
			t.Errorf("%q: %v, %v instead of %v %s", c.Text, got, err, c.Rates, c.Error)
		}
	}
	for _, c := range cases.Names {
		if name, err := keyOfWindow(c.Prefix, c.Key, c.Window); name != c.Name || sentence(err) != c.Error {
			t.Errorf("%q, %q: %q, %v", c.Prefix, c.Key, name, err)
		}
	}
	if len(cases.Texts) < 100 || len(cases.Single) < 5 || len(cases.Names) < 20 {
		t.Error("too few cases")
	}
}

func TestLimits(t *testing.T) {
	byAll(t, func(t *testing.T, client *Client) {
		limits := must(NewLimits(client, "5/hour; 3/minute", Prefix("limits:"), Timeout(20*time.Second), OnFailure(FailError),
			Mode(direct(client))))
		k := key()
		left := func(d Decisions) (all []int64) {
			for _, each := range d.Each {
				n, _ := each.Remaining()
				all = append(all, n)
			}
			return all
		}
		for _, want := range [][]int64{{4, 2}, {3, 1}, {2, 0}, {2, 0}} {
			granted := must(limits.Peek(background, k)).Allowed
			if d := must(limits.Allow(background, k)); !reflect.DeepEqual(left(d), want) || d.Allowed != granted {
				t.Errorf("%+v instead of %v", d, want)
			}
		}
		if d := must(limits.Peek(background, k)); d.Allowed || !d.Each[0].Allowed() || d.Each[1].Allowed() {
			t.Errorf("%+v", d)
		}
		if d := must(limits.Record(background, k, 1)); !reflect.DeepEqual(left(d), []int64{1, 0}) {
			t.Errorf("%+v", d)
		}
		if given := must(limits.Refund(background, k, 2)); !reflect.DeepEqual(given, []int64{2, 2}) {
			t.Errorf("%v", given)
		}
		if d := must(limits.AllowN(background, k, 2)); d.Allowed || d.RetryAfter() <= 0 {
			t.Errorf("%+v", d)
		}
		if client != nil { // each window is a key of its own
			for _, window := range []string{"3600000", "60000"} {
				if n := ask(t, client, "EXISTS", "limits:{"+k+"}:"+window); n != int64(1) {
					t.Errorf("%s: %v", window, n)
				}
			}
		}
		if err := limits.Reset(background, k); err != nil {
			t.Error(err)
		}
		if d := must(limits.PeekN(background, k, 3)); !d.Allowed || !reflect.DeepEqual(left(d), []int64{5, 3}) {
			t.Errorf("%+v", d)
		}
		if _, err := limits.Allow(background, ""); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
		if _, err := limits.Refund(background, "", 1); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
		if err := limits.Reset(background, ""); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
		if all := limits.Limiters(); len(all) != 2 || all[1].Quota().Limit != 3 {
			t.Errorf("%v", all)
		}
	})
	for rates, option := range map[string]Option{"5/hour, 5/60m": Name("a"), "5/hour": Timeout(-1),
		"5/minute": BlockFor(1e9)} {
		if _, err := NewLimits(nil, rates, option); !errors.Is(err, ErrArgument) {
			t.Errorf("%s: %v", rates, err)
		}
	}
}

func TestOpen(t *testing.T) {
	client := must(NewClient(Server{Addr: address(t, "main")}))
	l := must(Open(client, "2/minute", Timeout(20*time.Second), OnFailure(FailError)))
	k := key()
	for _, granted := range []bool{true, true, false} {
		if d := must(l.Allow(background, k)); d.Allowed() != granted {
			t.Errorf("%+v", d)
		}
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Allow(background, key()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	for rate, option := range map[string]Option{"2": Name("a"), "2/minute": Timeout(-1)} {
		client := must(NewClient(Server{Addr: "127.0.0.1:1"}))
		if _, err := Open(client, rate, option); !errors.Is(err, ErrArgument) || client.ctx.Err() == nil {
			t.Error(rate, err)
		}
	}
	client = dial(t)
	if err := must(New(client, Quota{Limit: 1, Window: time.Second})).Close(); err != nil || client.ctx.Err() != nil {
		t.Error("it closed what it had not opened")
	}
}
