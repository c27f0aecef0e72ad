package swlimit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var slow = Quota{Limit: 100, Window: time.Minute, Resolution: 5 * time.Second}

func eventualOf(t *testing.T, client *Client, q Quota, options ...Option) *Limiter {
	t.Helper()
	return must(New(client, q, append([]Option{Eventual, OnFailure(FailDeny)}, options...)...))
}

// take asks so often for one unit, and is how many were granted.
func take(l *Limiter, key string, times int) (granted int64) {
	for range times {
		granted += must(l.Allow(background, key)).Granted
	}
	return granted
}

func TestEventualSaysAndAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		s.delay(travels(time.Millisecond), travels(time.Millisecond))
		client := s.client(t)
		defer client.Close()
		l := eventualOf(t, client, slow)
		if n := take(l, "k", 30); n != 10 {
			t.Errorf("%d of a tenth of a key of which nothing is known", n)
		}
		time.Sleep(5 * time.Millisecond)
		if asked := s.asked(); len(asked) != 1 || !strings.HasPrefix(asked[0], "RECORD k 100 60000ms 5000ms") {
			t.Error(asked)
		}
		more := int64(0)
		for range 3 { // it is part of each synchronization
			more += take(l, "k", 1)
			time.Sleep(100 * time.Millisecond)
		}
		if more += take(l, "k", 200); more != 90 {
			t.Errorf("%d more", more)
		}
		if d := must(l.Allow(background, "k")); d.Source != FromEventual || d.RetryAfter <= 0 {
			t.Errorf("%+v", d)
		}
		time.Sleep(100 * time.Millisecond)
		if n := s.counted("k"); n != 100 {
			t.Errorf("%d counted", n)
		}
		// Somebody gives back: the key that is asked for is read.
		other := must(New(client, slow, Direct))
		must(other.Refund(background, "k", 5))
		if n := take(l, "k", 1); n != 0 {
			t.Error("granted before it was heard")
		}
		time.Sleep(100 * time.Millisecond)
		if asked := s.asked(); !strings.HasPrefix(asked[len(asked)-1], "PEEK k") {
			t.Error(asked)
		}
		if d := must(l.AllowN(background, "k", 5)); d.Granted != 5 {
			t.Errorf("%+v", d)
		}
		before := len(s.asked())
		time.Sleep(time.Second)
		if asked := s.asked()[before:]; len(asked) != 1 {
			t.Errorf("asked without need: %v", asked)
		}
		if d := must(l.AllowN(background, "k", 101)); d.Source != FromCache || !d.Never() {
			t.Errorf("%+v", d)
		}
		if by := l.Statistics().Eventual; by.Granted != 101 || by.Denied < 100 {
			t.Errorf("%+v", by)
		}
	})
}

// Of a key that was not part of the last synchronization no more than a share is granted, until the server was heard.
func TestEventualTrustsNoOldReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		s.delay(travels(10*time.Millisecond), travels(10*time.Millisecond))
		client := s.client(t)
		defer client.Close()
		l := eventualOf(t, client, slow)
		take(l, "k", 1)
		time.Sleep(2 * time.Second)
		if n := take(l, "k", 6); n != 6 {
			t.Errorf("%d", n)
		}
		time.Sleep(15 * time.Millisecond) // a synchronization is under way
		if n := take(l, "k", 60); n != 4 {
			t.Errorf("%d of the share that was left", n)
		}
		time.Sleep(150 * time.Millisecond)
		if n := take(l, "k", 100); n != 89 {
			t.Errorf("%d of what was left", n)
		}
	})
}

// A connection that answers no more is given up, and what it leaves in doubt goes over another.
func TestEventualLeavesSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		client := s.client(t)
		defer client.Close()
		l := eventualOf(t, client, slow)
		take(l, "k", 1)
		time.Sleep(101 * time.Millisecond)
		s.delay(travels(time.Hour), nil)
		take(l, "k", 5)
		time.Sleep(time.Millisecond)
		s.delay(nil, nil)
		time.Sleep(12 * time.Second)
		n := s.counted("k")
		if d := must(l.Allow(background, "k")); d.Source != FromEventual || n != 6 {
			t.Errorf("%+v, %d counted", d, n)
		}
		s.cut() // else the bubble lasts as long as a command is on its way
	})
}

// What could not be sent is sent later, dated, and the policy decides after three failures.
func TestEventualSendsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		client := s.client(t)
		defer client.Close()
		l := eventualOf(t, client, slow, LocalShare(0.6))
		take(l, "k", 1)
		time.Sleep(101 * time.Millisecond)
		s.refuse("MISCONF no")
		if d := must(l.AllowN(background, "k", 20)); d.Source != FromEventual || !d.Allowed() {
			t.Errorf("%+v", d)
		}
		time.Sleep(120 * time.Millisecond)
		if d := must(l.AllowN(background, "k", 30)); !d.Allowed() {
			t.Errorf("%+v", d)
		}
		time.Sleep(300 * time.Millisecond)
		if d := must(l.Allow(background, "k")); d.Source != FromFailure || d.Allowed() {
			t.Errorf("%+v", d)
		}
		failing := must(New(client, slow, Eventual, OnFailure(FailError)))
		take(failing, "k", 1)
		time.Sleep(400 * time.Millisecond)
		if _, err := failing.Allow(background, "k"); ReasonOf(err) != "MISCONF" {
			t.Error(err)
		}
		s.refuse("")
		time.Sleep(2 * time.Second)
		n := s.counted("k")
		if d := must(l.Allow(background, "k")); d.Source != FromEventual {
			t.Errorf("%+v", d)
		}
		if n != 52 {
			t.Errorf("%d counted", n)
		}
		if asked := s.asked(); !slices.ContainsFunc(asked, func(text string) bool { return strings.Contains(text, "COST 50 AGE") }) {
			t.Errorf("within a tenth of the resolution they are one batch: %v", asked)
		}
	})
}

// A key that the server refuses holds up no other, and its callers get the error.
func TestEventualIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		s.refused["bad"] = "NOPERM this user has no permissions"
		client := s.client(t)
		defer client.Close()
		l := eventualOf(t, client, slow)
		for range 3 {
			_, _ = l.Allow(background, "bad")
			take(l, "good", 1)
			time.Sleep(150 * time.Millisecond)
		}
		var refused RefusedError
		if _, err := l.Allow(background, "bad"); !errors.As(err, &refused) {
			t.Error(err)
		}
		if n := s.counted("good"); n != 3 || l.Statistics().Refused != 1 {
			t.Errorf("%d, %+v", n, l.Statistics())
		}
		s.mu.Lock()
		delete(s.refused, "bad")
		s.mu.Unlock()
		time.Sleep(150 * time.Millisecond)
		if n := take(l, "bad", 1); n != 1 {
			t.Error("denied after it was refused")
		}
	})
}

// What is forgotten for lack of room does not get its share again, and what there is no room for is the server's.
func TestEventualForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulated()
		client := s.client(t)
		defer client.Close()
		l, used := eventualOf(t, client, slow, MaxKeys(50)), int64(0)
		for round := range 30 {
			used += take(l, "k", 10)
			time.Sleep(150 * time.Millisecond)
			for other := range 30 {
				take(l, fmt.Sprint(round, other), 1)
			}
			time.Sleep(150 * time.Millisecond)
		}
		if used > 110 {
			t.Errorf("%d of 100", used)
		}
		if l.Statistics().Evicted == 0 {
			t.Error("nothing was evicted")
		}
		one := eventualOf(t, client, Quota{Limit: 1, Window: time.Minute}, MaxKeys(1), Prefix("one:"))
		s.delay(travels(time.Millisecond), travels(time.Millisecond))
		take(one, "first", 1) // which is not counted yet
		if d := must(one.Allow(background, "second")); d.Source != FromServer || d.Granted != 1 {
			t.Errorf("%+v", d)
		}
		if d := must(one.Allow(background, "second")); d.Granted != 0 {
			t.Errorf("%+v", d)
		}
	})
}

// Close sends what is unsent, also where the server is back in time; what is lost is counted.
func TestEventualCloses(t *testing.T) {
	for name, back := range map[string]time.Duration{"at once": 0, "back": 400 * time.Millisecond, "away": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulated()
				client := s.client(t)
				l := eventualOf(t, client, Quota{Limit: 1000, Window: time.Minute})
				used := take(l, "k", 1)
				time.Sleep(101 * time.Millisecond)
				s.down(back > 0)
				used += take(l, "k", 20)
				began := time.Now()
				timer := time.AfterFunc(back, func() { s.down(false) })
				client.Close()
				if took := time.Since(began); took > 1600*time.Millisecond {
					t.Errorf("it took %v", took)
				}
				timer.Stop()
				lost := l.Statistics().Lost
				if counted := s.counted("k"); counted+lost != used || (lost > 0) != (name == "away") {
					t.Errorf("%d counted, %d lost of %d", counted, lost, used)
				}
				if _, err := l.Allow(background, "k"); !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}

// Whatever was granted can be given back, wherever it is: here alone, on its way, or counted.
func TestEventualRefunds(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			s := newSimulated()
			trip := time.Duration(random.IntN(10)) * time.Millisecond
			s.delay(travels(trip), travels(trip))
			client := s.client(t)
			l := eventualOf(t, client, Quota{Limit: 1000, Window: 1000 * time.Hour}, Timeout(time.Second))
			other := must(l.With(Quota{Limit: 2000, Window: 1000 * time.Hour})) // its counts are apart
			used := int64(0)
			for range 100 {
				cost := 1 + random.Int64N(8)
				switch random.IntN(5) {
				case 0:
					time.Sleep(time.Duration(random.IntN(80)) * time.Millisecond)
				case 1:
					if used >= cost {
						used -= must(l.Refund(background, "k", cost))
					}
				case 2:
					must(l.Record(background, "k", cost))
					used += cost
				case 3:
					used += must(other.AllowN(background, "k", cost)).Granted
				default:
					used += must(l.AllowN(background, "k", cost)).Granted
				}
			}
			client.Close()
			if n := s.counted("k"); n != used {
				t.Errorf("seed %d: %d counted of %d", seed, n, used)
			}
		})
	}
}

// With connections that are cut, a server that goes away, refuses and is late, what is counted in the end is what was
// granted, and once more what commands counted whose reply never came, without what is given up after that happened twice.
func TestEventualCountsWhatItGranted(t *testing.T) {
	t.Parallel()
	exact, cut := 0, 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			s := newSimulated()
			s.delay(between(seed, 30*time.Millisecond), between(seed+1, 30*time.Millisecond))
			var limiters []*Limiter
			for range 1 + random.IntN(4) {
				limiters = append(limiters, eventualOf(t, s.client(t), Quota{Limit: 5000, Window: 1000 * time.Hour},
					SyncInterval(time.Duration(20+random.IntN(100))*time.Millisecond)))
			}
			granted, keys := int64(0), []string{"a", "b", "c"}
			faults := 3 + random.IntN(100)
			for range 300 {
				l, key := limiters[random.IntN(len(limiters))], keys[random.IntN(len(keys))]
				if d := must(l.AllowN(background, key, 1+random.Int64N(3))); d.Source == FromEventual {
					granted += d.Granted
				}
				time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
				switch random.IntN(faults) {
				case 0:
					s.cut()
				case 1:
					s.down(true)
					time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, func() { s.down(false) })
				case 2:
					s.refuse("OOM command not allowed")
					time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, func() { s.refuse("") })
				}
			}
			time.Sleep(time.Second)
			s.down(false)
			s.refuse("")
			time.Sleep(5 * time.Second)
			lost, again := int64(0), int64(0)
			for _, l := range limiters {
				l.client.Close()
				lost, again = lost+l.Statistics().Lost, again+l.Statistics().SentAgain
			}
			counted := int64(0)
			for _, key := range keys {
				counted += s.counted(key)
			}
			if counted != granted+s.unheard-lost || s.unheard > again+lost {
				t.Errorf("seed %d: %d counted of %d, %d lost, %d sent again, %d unheard", seed, counted, granted, lost, again,
					s.unheard)
			}
			if again > 0 {
				cut++
			} else if counted > 0 {
				exact++
			}
		})
	}
	if exact < 3 || cut < 15 {
		t.Errorf("%d runs counted each unit once, %d cut replies off", exact, cut)
	}
}

// In any span of W - R, clients grant at most the limit, and what the others grant in the time that the bound names.
func TestEventualKeepsItsBound(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			q := Quota{Limit: 5 + random.Int64N(55), Window: 2 * time.Second, Resolution: 200 * time.Millisecond}
			interval, way := time.Duration(5+random.IntN(55))*time.Millisecond, time.Duration(random.IntN(10))*time.Millisecond
			s := newSimulated()
			s.delay(between(seed, way), between(seed+1, way))
			limiters := make([]*Limiter, 1+random.IntN(5))
			for i := range limiters {
				limiters[i] = eventualOf(t, s.client(t), q, SyncInterval(interval))
				limiters[i].localShare = 0
				defer limiters[i].client.Close()
			}
			late := time.Millisecond
			trip := 2*way + 2*late
			unseen := 2*max(interval+late, trip) + trip + 2*way // ways differ by so much
			type grant struct {
				at  time.Duration
				who int
			}
			var granted []grant
			for range 400 {
				time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond)
				who := random.IntN(len(limiters))
				if !must(limiters[who].Allow(background, "k")).Allowed() {
					continue
				}
				inSpan, others := int64(0), int64(0)
				for _, g := range granted {
					if now() < g.at+q.Window-q.Resolution {
						inSpan++
					}
					if g.who != who && now() <= g.at+unseen {
						others++
					}
				}
				if inSpan >= q.Limit+others {
					t.Fatalf("seed %d: %d of %d, %d unseen", seed, inSpan, q.Limit, others)
				}
				granted = append(granted, grant{now(), who})
			}
		})
	}
}

// What clients grant together at 2.5 times the limit, by their number: the log has the table of the page.
func TestEventualOvershoot(t *testing.T) {
	t.Parallel()
	const interval, trip, seconds = 100 * time.Millisecond, 20 * time.Millisecond, 5
	q := Quota{Limit: 1000, Window: 2 * time.Second, Resolution: 100 * time.Millisecond}
	for _, clients := range []int{1, 2, 8, 64} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulated()
			s.delay(travels(trip/2), travels(trip/2))
			limiters := make([]*Limiter, clients)
			for i := range limiters {
				limiters[i] = eventualOf(t, s.client(t), q)
				limiters[i].localShare = 0
				defer limiters[i].client.Close()
			}
			rate := 2.5 * float64(q.Limit) / q.Window.Seconds() // requests a second
			var granted []time.Duration
			random, most := rand.New(rand.NewPCG(3, 3)), 0
			for began := now(); now() < began+seconds*time.Second; {
				time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
				if !must(limiters[random.IntN(clients)].Allow(background, "k")).Allowed() {
					continue
				}
				granted = append(granted, now())
				for now() >= granted[0]+q.Window-q.Resolution {
					granted = granted[1:]
				}
				most = max(most, len(granted))
			}
			unseen := 2*interval + trip + 3*time.Millisecond
			bound := float64(q.Limit) + float64(clients-1)/float64(clients)*rate*1.2*unseen.Seconds()
			t.Logf("%d clients: %.2f of the limit, at most %.2f", clients, float64(most)/float64(q.Limit), bound/float64(q.Limit))
			if float64(most) > bound {
				t.Errorf("%d clients: %d of %.0f", clients, most, bound)
			}
		})
	}
}

// On real servers: by the module, by the script, and in a cluster, which TestCluster has.
func TestEventualOnServers(t *testing.T) {
	t.Parallel()
	byBoth(t, func(t *testing.T, addr string) {
		countsWhatItGranted(t, func() Transport { return Server{Addr: addr} })
	})
}

func countsWhatItGranted(t *testing.T, transport func() Transport) {
	client := must(NewClient(transport()))
	l := must(New(client, slow, Eventual, OnFailure(FailError), Timeout(20*time.Second)))
	keys := []string{key(), key(), key(), key()}
	for range 30 {
		for _, k := range keys {
			must(l.Allow(background, k))
		}
		time.Sleep(10 * time.Millisecond)
	}
	client.Close()
	direct, counted := limiter(t, connect(t, transport()), 100, Direct), int64(0)
	for _, k := range keys {
		left, _ := must(direct.Peek(background, k)).Remaining()
		counted += 100 - left
	}
	if granted := l.Statistics().Eventual.Granted; counted != granted || granted < 40 {
		t.Errorf("%d counted of %d", counted, granted)
	}
}
