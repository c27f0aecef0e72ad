package swlimit

import (
	"errors"
	"reflect"
	"testing"
	"time"
	_ "time/tzdata"
)

func TestPeriods(t *testing.T) {
	for _, c := range []struct {
		period              Period
		zone                string
		instant, start, end string
	}{
		{Hourly(), "UTC", "2026-03-04T05:06:07Z", "2026-03-04T05:00:00Z", "2026-03-04T06:00:00Z"},
		{Hourly(), "Asia/Kolkata", "2026-03-04T05:06:07Z", "2026-03-04T04:30:00Z", "2026-03-04T05:30:00Z"},
		{Daily(), "UTC", "2026-03-04T05:06:07Z", "2026-03-04T00:00:00Z", "2026-03-05T00:00:00Z"},
		{Daily(), "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{Daily(), "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		// No midnight, and one that comes twice.
		{Daily(), "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{Daily(), "America/Sao_Paulo", "2018-02-17T12:00:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		// A day that never was.
		{Daily(), "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{Weekly(time.Monday), "UTC", "2026-03-04T05:06:07Z", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"},
		{Weekly(time.Sunday), "UTC", "2026-03-04T05:06:07Z", "2026-03-01T00:00:00Z", "2026-03-08T00:00:00Z"},
		{Monthly(1), "Europe/Berlin", "2026-03-04T05:06:07Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"},
		{Monthly(31), "UTC", "2026-02-28T05:06:07Z", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{Monthly(31), "UTC", "2026-02-27T05:06:07Z", "2026-01-31T00:00:00Z", "2026-02-28T00:00:00Z"},
		{Yearly(time.April, 6), "UTC", "2026-03-04T05:06:07Z", "2025-04-06T00:00:00Z", "2026-04-06T00:00:00Z"},
		{Yearly(time.February, 29), "UTC", "2026-03-04T05:06:07Z", "2026-02-28T00:00:00Z", "2027-02-28T00:00:00Z"},
	} {
		location := must(time.LoadLocation(c.zone))
		at := func(text string) int64 { return must(time.Parse(time.RFC3339, text)).UnixMilli() }
		start, end := c.period.at(at(c.instant), location)
		if start != at(c.start) || end != at(c.end) {
			t.Errorf("%s of %s in %s: %v to %v", c.period.name, c.instant, c.zone, time.UnixMilli(start).UTC(),
				time.UnixMilli(end).UTC())
		}
	}
	for _, period := range []Period{Weekly(7), Monthly(0), Monthly(32), Yearly(13, 1), Yearly(time.February, 30), {}} {
		if _, err := NewBudget(nil, 1, period, nil); !errors.Is(err, ErrArgument) {
			t.Errorf("%v", err)
		}
	}
}

// Periods follow each other without a gap, wherever clocks change.
func TestPeriodsMeet(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut",
		"Pacific/Apia"} {
		location := must(time.LoadLocation(name))
		for _, period := range []Period{Hourly(), Daily(), Weekly(time.Sunday), Monthly(15), Yearly(time.April, 6)} {
			at := time.Date(2009, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
			for range 2000 {
				start, end := period.at(at, location)
				last, again := period.at(end-1, location)
				if start > at || end <= at || last != start || again != end {
					t.Fatalf("%s in %s at %v: %v to %v", period.name, name, at, start, end)
				}
				at = end
			}
		}
	}
}

func TestBudget(t *testing.T) {
	for _, client := range []*Client{dial(t), connect(t, Server{Addr: address(t, "bare")}), nil} {
		b := must(NewBudget(client, 10, Yearly(time.January, 1), must(time.LoadLocation("Europe/Berlin")),
			Timeout(20*time.Second), OnFailure(FailError)))
		k := key()
		if d := must(b.Peek(background, k)); !d.Allowed() || d.ResetAfter != 0 {
			t.Errorf("%+v", d)
		}
		if d := must(b.AllowN(background, k, 7)); d.Granted != 7 || d.ResetAfter <= 0 {
			t.Errorf("%+v", d)
		}
		if d := must(b.AllowN(background, k, 4)); d.Allowed() || d.RetryAfter <= 0 || d.RetryAfter != d.ResetAfter {
			t.Errorf("%+v", d)
		}
		if d := must(b.AllowAtMost(background, k, 4)); d.Granted != 3 {
			t.Errorf("%+v", d)
		}
		if d := must(b.Peek(background, k)); d.Allowed() {
			t.Errorf("%+v", d)
		}
		if d := must(b.AllowN(background, k, 11)); d.RetryAfter != Never {
			t.Errorf("%+v", d)
		}
		if d := must(b.Record(background, k, 5)); d.Allowed() {
			t.Errorf("%+v", d)
		}
		if n := must(b.Refund(background, k, 6)); n != 6 {
			t.Errorf("%d given back", n)
		}
		if left, _ := must(b.Peek(background, k)).Remaining(); left != 1 {
			t.Errorf("%d left", left)
		}
		if err := b.Reset(background, k); err != nil {
			t.Error(err)
		}
		if left, _ := must(b.Peek(background, k)).Remaining(); left != 10 {
			t.Errorf("%d left", left)
		}
	}
}

func TestAdmission(t *testing.T) {
	for _, client := range []*Client{dial(t), connect(t, Server{Addr: address(t, "bare")}), nil} {
		options := []Option{Timeout(20 * time.Second), OnFailure(FailError)}
		rates := limiter(t, client, 10, Prefix("rate:"))
		budget := must(NewBudget(client, 100, Daily(), nil, append(options, Prefix("budget:"))...))
		holds := must(NewHolds(client, 1, time.Minute, append(options, Prefix("hold:"))...))
		k := key()
		left := func() [2]int64 {
			rate, _ := must(rates.Peek(background, k)).Remaining()
			spent, _ := must(budget.Peek(background, k)).Remaining()
			return [2]int64{rate, spent}
		}
		all := func() []Part { return []Part{rates.Request(k, 2), holds.Request(k, 1), budget.Request(k, 30)} }
		a := must(Admit(background, all()))
		if !a.Allowed || len(a.Each) != 3 || len(a.Holds) != 1 || !a.Holds[0].Live() || left() != [2]int64{8, 70} {
			t.Fatalf("%+v, %v", a, left())
		}
		if again := must(Admit(background, all())); again.Allowed ||
			again.Holds != nil || left() != [2]int64{8, 70} {
			t.Errorf("%+v, %v", again, left())
		}
		changes := must(a.Settle(background, 1, 45))
		if !reflect.DeepEqual(changes, []int64{-1, 15}) || left() != [2]int64{9, 55} || a.Holds[0].Live() {
			t.Errorf("%v, %v", changes, left())
		}
		if again := must(a.Settle(background, 1, 45)); again != nil {
			t.Errorf("%v", again)
		}
		// Without a hold.
		b := must(Admit(background, []Part{rates.Request(k, 2), budget.Request(k, 5)}))
		changes = must(b.Settle(background, 0, 6))
		if !reflect.DeepEqual(changes, []int64{-2, 1}) || left() != [2]int64{9, 49} {
			t.Errorf("%v, %v", changes, left())
		}
		late := must(Admit(background, []Part{budget.Request(k, 5)}))
		late.sent -= 25 * time.Hour
		if changes := must(late.Settle(background, 0)); changes[0] != 0 || left() != [2]int64{9, 44} {
			t.Errorf("%v, %v: the period in which they were counted is over", changes, left())
		}
		c := must(Admit(background, []Part{holds.Request(k, 1)}))
		c.Release()
		if d := must(Admit(background, []Part{holds.Request(k, 1)})); !d.Allowed {
			t.Error("not released")
		} else {
			d.Release()
		}
		for _, parts := range [][]Part{{}, {rates.Request(k, 0)}, {rates.Request(k, 1), rates.Request(k, 1)},
			{Limited(-1, rates.Request(k, 1))}, {Named("", rates.Request(k, 1))},
			{Named("a", rates.Request(k, 1)), Named("a", budget.Request(k, 1))}} {
			if _, err := Admit(background, parts); !errors.Is(err, ErrArgument) {
				t.Errorf("%v", err)
			}
		}
		if _, err := b.Settle(background, 1); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	}
}
