package swlimit

import "github.com/swlimit/swlimit/src/clients/go/internal/fakes"

func init() {
	fakes.Answer = func(limiter any, answers fakes.Answers) { limiter.(*Limiter).windows.fake = &fakeWindows{answers} }
}

// fakeWindows are those of a limiter for tests: each request finds one for which nothing is counted, or which is blocked.
type fakeWindows struct{ fakes.Answers }

func (f *fakeWindows) decide(method, key string, d demand, block int64, how func(e *entry, at int64) (reply, error)) (reply, error) {
	denied := f.Called(method, key, d.cost)
	if block > 0 && (denied > 0 || d.least() > d.limit) {
		denied = max(denied, f.Block(key, duration(block), true))
	}
	if denied == Never {
		return reply{0, d.limit, 0, -1, 0}, nil
	}
	at := clock()
	at -= at % d.resolution // so that a request always has the same answer
	return how(&entry{blockedUntil: at + upTo(denied)}, at)
}

func (f *fakeWindows) allow(method, key string, d demand, block int64) (reply, error) {
	return f.decide(method, key, d, block, func(e *entry, at int64) (reply, error) { return e.allow(&d, at, block) })
}

func (f *fakeWindows) peek(method, key string, d demand) (reply, error) {
	return f.decide(method, key, d, 0, func(e *entry, at int64) (reply, error) { return e.peek(&d, at) })
}

func (f *fakeWindows) record(key string, d demand, age, block int64) (reply, error) {
	return f.decide("record", key, d, block, func(e *entry, at int64) (reply, error) { return e.record(&d, at, age, block) })
}
