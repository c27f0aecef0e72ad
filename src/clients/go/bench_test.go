package swlimit

import (
	"testing"
	"time"
)

func BenchmarkKnownDenial(b *testing.B) {
	client := must(NewClient(Server{Addr: "127.0.0.1:1"}))
	defer client.Close()
	l := must(New(client, Quota{Limit: 1, Window: time.Hour}))
	d := demand{l.quota, 1, false}
	client.denials.remember("user:1", &d, client.denials.ask("user:1", true), reply{0, 1, 0, 3_600_000, 3_600_000}, 0, Never)
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := l.Allow(background, "user:1"); d.Source != FromCache {
			b.Fatal(d)
		}
	}
}

func BenchmarkLocal(b *testing.B) {
	l := must(New(nil, Quota{Limit: maxExact, Window: time.Minute}))
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := l.Allow(background, "user:1"); !d.Allowed() {
			b.Fatal(d)
		}
	}
}

func BenchmarkDirect(b *testing.B) {
	l := limiter(b, dial(b), maxExact, Direct)
	k := key()
	for b.Loop() {
		must(l.Allow(background, k))
	}
}
