package swlimit

import (
	"log/slog"
	"slices"
	"time"
)

// A Mode says where decisions are made. It is an [Option] itself.
type Mode string

const (
	// Direct asks the server for every request.
	Direct Mode = "direct"
	// Cached is the default: it asks for every request but those that are known to be denied.
	Cached Mode = "cached"
	// Eventual asks for no request: what was used is counted by the server later, and what it says then decides. More than
	// the limit may be granted, by what other clients grant meanwhile. Wait, AllowAll and Admit ask the server.
	Eventual Mode = "eventual"
	// Local decides in this process alone, with the whole limit. It is the only mode without a [Client].
	Local Mode = "local"
)

// A FailurePolicy says what decides while the server is unavailable: the value of [OnFailure].
type FailurePolicy string

const (
	// FailLocal is the default: this process decides, with [LocalShare] of the limit.
	FailLocal FailurePolicy = "local"
	// FailAllow grants everything.
	FailAllow FailurePolicy = "allow"
	// FailDeny denies everything.
	FailDeny FailurePolicy = "deny"
	// FailError returns an error that is [ErrUnavailable].
	FailError FailurePolicy = "error"
)

// settings are the options, complete and checked.
type settings struct {
	mode            Mode
	onFailure       FailurePolicy
	localShare      float64
	timeout         time.Duration
	maxKeys         int64
	maxUntrackedAge time.Duration
	syncInterval    time.Duration
	prefix, name    string
	block           int64 // ms; 0: none
	warmUp          warmUp
	coldGiven       bool
}

// An Option changes what a limiter does.
type Option interface{ apply(*settings) error }

type option func(*settings) error

func (o option) apply(s *settings) error { return o(s) }

func (m Mode) apply(s *settings) error {
	s.mode = m
	if !slices.Contains([]Mode{Direct, Cached, Eventual, Local}, m) {
		return wrong("mode must be direct, cached, eventual or local, not %q", m)
	}
	return nil
}

// OnFailure says what decides while the server is unavailable. Default: [FailLocal], of [Holds] [FailError].
func OnFailure(p FailurePolicy) Option {
	return option(func(s *settings) error {
		s.onFailure = p
		if !slices.Contains([]FailurePolicy{FailLocal, FailAllow, FailDeny, FailError}, p) {
			return wrong("on_failure must be local, allow, deny or error, not %q", p)
		}
		return nil
	})
}

// LocalShare is the part of the limit that this process grants with [FailLocal], and in mode [Eventual] before the
// server was heard, rounded up: 0.000001 … 1. Default: 0.1.
func LocalShare(part float64) Option {
	return option(func(s *settings) error {
		s.localShare = part
		if !(part >= 0.000001 && part <= 1) {
			return wrong("local share must be a number between 0.000001 and 1, not %v", part)
		}
		return nil
	})
}

// Timeout is the longest that a request waits for the server, in whole milliseconds. Default: 50 ms, of [Holds] 1 s.
func Timeout(d time.Duration) Option {
	return option(func(s *settings) error {
		s.timeout = d
		_, err := milliseconds(d, "timeout", 1)
		return err
	})
}

// MaxKeys is the most keys that this process remembers. Default: 100,000.
func MaxKeys(n int64) Option {
	return option(func(s *settings) error {
		s.maxKeys = n
		return integer(n, "max keys", 1)
	})
}

// MaxUntrackedAge is the longest that a denial is remembered whose end the server does not announce, in whole
// milliseconds. Default: 100 ms.
func MaxUntrackedAge(d time.Duration) Option {
	return option(func(s *settings) error {
		s.maxUntrackedAge = d
		_, err := milliseconds(d, "max untracked age", 0)
		return err
	})
}

// SyncInterval is how often mode [Eventual] synchronizes, in whole milliseconds. Default: 100 ms.
func SyncInterval(d time.Duration) Option {
	return option(func(s *settings) error {
		s.syncInterval = d
		_, err := milliseconds(d, "sync interval", 1)
		return err
	})
}

// Prefix is put before every key.
func Prefix(text string) Option {
	return option(func(s *settings) error {
		s.prefix = text
		return nil
	})
}

// Name is the limiter's name in the headers of responses. Default: "default".
func Name(text string) Option {
	return option(func(s *settings) error {
		s.name = text
		return nil
	})
}

// BlockFor blocks a key for so long, in whole milliseconds, when a request is denied; in mode [Eventual] when more than
// the limit was granted.
func BlockFor(d time.Duration) Option {
	return option(func(s *settings) (err error) {
		s.block, err = milliseconds(d, "block", 1)
		return err
	})
}

// WarmUp has a limit begin at a third of it when a key was idle, and rise to all of it within so long, in whole
// milliseconds: for what is slow at first, such as caches and pools of connections. It takes at least ten windows. A server
// with the module needs 0.2.0 of it.
func WarmUp(d time.Duration) Option {
	return option(func(s *settings) (err error) {
		s.warmUp.duration, err = milliseconds(d, "warm_up", 1)
		return err
	})
}

// Cold says at which part of the limit a [WarmUp] begins: one of so many parts, 2 … 1000. Default: 3.
func Cold(parts int64) Option {
	return option(func(s *settings) error {
		if s.warmUp.cold, s.coldGiven = parts, true; parts < 2 || parts > mostCold {
			return wrong("cold must be an integer between 2 and %d", mostCold)
		}
		return nil
	})
}

// apply has the options change the defaults.
func (s *settings) apply(client *Client, options []Option) error {
	if client == nil {
		s.mode = Local
	}
	for _, o := range options {
		if o == nil {
			return wrong("an option is nil")
		}
		if err := o.apply(s); err != nil {
			return err
		}
	}
	if client == nil && s.mode != Local {
		return wrong("mode %q needs a Client", s.mode)
	}
	return nil
}

func defaults() *settings {
	return &settings{mode: Cached, onFailure: FailLocal, localShare: 0.1, timeout: 50 * time.Millisecond,
		maxKeys: 100_000, maxUntrackedAge: 100 * time.Millisecond, syncInterval: 100 * time.Millisecond, name: "default",
		warmUp: warmUp{cold: usualCold}}
}

// A ClientOption changes what a [Client] does.
type ClientOption func(*clientSettings) error

type clientSettings struct {
	log        *slog.Logger // nil: the default one, whichever that is when something is logged
	name       string
	poolSize   int
	maxWaiting int
	cluster    ClusterMode
}

// Logger gets what the client logs. Default: [slog.Default].
func Logger(log *slog.Logger) ClientOption {
	return func(s *clientSettings) error {
		s.log = log
		return nil
	}
}

// ClientName is the name of the client's connections in CLIENT LIST, without spaces. Default: none.
func ClientName(name string) ClientOption {
	return func(s *clientSettings) error {
		s.name = name
		for _, c := range []byte(name) {
			if c <= ' ' || c > '~' {
				return wrong("a client's name must be printable ASCII without spaces, not %q", name)
			}
		}
		return nil
	}
}

// PoolSize is the most connections to each server that requests share: 1 … 64. A connection is added when 1,000
// commands are unanswered on each. Default: 4.
func PoolSize(n int) ClientOption {
	return func(s *clientSettings) error {
		s.poolSize = n
		if n < 1 || n > 64 {
			return wrong("pool size must be from 1 to 64, not %d", n)
		}
		return nil
	}
}

// MaxWaiting is the most connections on which calls of Wait and Acquire wait for their turn. Default: 10.
func MaxWaiting(n int) ClientOption {
	return func(s *clientSettings) error {
		s.maxWaiting = n
		return integer(int64(n), "max waiting", 1)
	}
}

// A ClusterMode says whether a client of one address becomes one of a cluster: the value of [FollowCluster].
type ClusterMode string

const (
	// ClusterAuto is the default: where the server says that it is one of a cluster.
	ClusterAuto ClusterMode = "auto"
	// ClusterOn is a client of a cluster from the start.
	ClusterOn ClusterMode = "on"
	// ClusterOff asks the one address only.
	ClusterOff ClusterMode = "off"
)

// FollowCluster says whether a client of one [Server] becomes a client of the cluster that the server is part of. Its
// credentials go to the servers that the cluster names only under the TLS settings of the first. Default:
// [ClusterAuto].
func FollowCluster(mode ClusterMode) ClientOption {
	return func(s *clientSettings) error {
		s.cluster = mode
		if !slices.Contains([]ClusterMode{ClusterAuto, ClusterOn, ClusterOff}, mode) {
			return wrong("cluster must be auto, on or off, not %q", mode)
		}
		return nil
	}
}

func clientSettingsOf(options []ClientOption) (clientSettings, error) {
	s := clientSettings{poolSize: 4, maxWaiting: 10, cluster: ClusterAuto}
	for _, o := range options {
		if o == nil {
			return s, wrong("a client's option is nil")
		}
		if err := o(&s); err != nil {
			return s, err
		}
	}
	return s, nil
}
