package swlimit

import "sync/atomic"

// A Count is how many decisions one source made.
type Count struct{ Granted, Denied int64 }

// Statistics says how many decisions were made by whom.
type Statistics struct {
	// Server, Cache, Eventual, Failure and Local are the decisions of each [Source].
	Server, Cache, Eventual, Failure, Local Count
	// TakenOver is how many keys the Client has handed from the script to the module, for all its limiters.
	TakenOver int64
	// Lost is how many units stay counted that were granted to nobody, because giving them back failed, or were granted in
	// mode [Eventual] and may never be counted, for all its limiters.
	Lost int64
	// SentAgain is how many units of mode [Eventual] may count twice, because a connection closed before its reply.
	SentAgain int64
	// Refused is how many units of mode [Eventual] the server has refused to count.
	Refused int64
	// Evicted is how many keys this process forgot that were still of use, because there were more than MaxKeys.
	Evicted int64
}

// By is what each source decided.
func (s Statistics) By() map[Source]Count {
	return map[Source]Count{FromServer: s.Server, FromCache: s.Cache, FromEventual: s.Eventual,
		FromFailure: s.Failure, FromLocal: s.Local}
}

// counters count decisions by source, and by whether they granted.
type counters struct {
	server, cache, eventual, failure, local counter
	evicted, sentAgain, refused             atomic.Int64
}

type counter struct{ granted, denied atomic.Int64 }

func (c *counter) read() Count { return Count{c.granted.Load(), c.denied.Load()} }

func (c *counters) of(source Source) *counter {
	switch source {
	case FromServer:
		return &c.server
	case FromCache:
		return &c.cache
	case FromEventual:
		return &c.eventual
	case FromFailure:
		return &c.failure
	}
	return &c.local
}

// Statistics says how many decisions were made by whom, since the limiter was made.
func (l *Limiter) Statistics() Statistics {
	if l == nil {
		return Statistics{}
	}
	return l.statistics()
}

// Statistics says how many decisions were made by whom, since the budget was made.
func (b *Budget) Statistics() Statistics {
	if b == nil {
		return Statistics{}
	}
	return b.statistics()
}

// Statistics says how many decisions were made by whom, since the holds were made.
func (h *Holds) Statistics() Statistics {
	if h == nil {
		return Statistics{}
	}
	return h.statistics()
}

func (a asker) statistics() Statistics {
	if a.counts == nil {
		return Statistics{}
	}
	c := a.counts
	s := Statistics{Server: c.server.read(), Cache: c.cache.read(), Failure: c.failure.read(),
		Eventual: c.eventual.read(), Local: c.local.read(), Evicted: c.evicted.Load(), SentAgain: c.sentAgain.Load(),
		Refused: c.refused.Load()}
	if a.client != nil {
		s.TakenOver, s.Lost = a.client.takenOver.Load(), a.client.lostUnits.Load()
	}
	return s
}

func (a asker) decided(r reply, source Source) Decision {
	of := a.counts.of(source)
	if r.granted > 0 {
		of.granted.Add(1)
	} else {
		of.denied.Add(1)
	}
	return r.decision(source)
}
