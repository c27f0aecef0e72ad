// Package rueidisgo has limiters share the settings of clients of github.com/redis/rueidis.
//
// Limiters open connections of their own, as such a client would: to the same addresses, with its credentials and its
// TLS. The client itself would not say what was granted to a caller that has gone.
package rueidisgo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"

	"github.com/redis/rueidis"

	"github.com/swlimit/swlimit/src/clients/go"
)

// Open returns a limiter of one rate such as "100/minute", as [swlimit.ParseQuota] reads it, on the server of a URL as
// [rueidis.ParseURL] takes it. Its Close closes its connections.
func Open(url, rate string, options ...swlimit.Option) (*swlimit.Limiter, error) {
	client, err := fromURL(url)
	if err != nil {
		return nil, err
	}
	return swlimit.Open(client, rate, options...)
}

// OpenLimits returns several rates such as "100/hour; 5/second", as [swlimit.NewLimits] takes them, on the server of a
// URL. Their Close closes their connections.
func OpenLimits(url, rates string, options ...swlimit.Option) (*swlimit.Limits, error) {
	client, err := fromURL(url)
	if err != nil {
		return nil, err
	}
	return swlimit.OpenLimits(client, rates, options...)
}

// fromURL does not repeat the URL in its error: it may have a password.
func fromURL(raw string) (*swlimit.Client, error) {
	option, err := rueidis.ParseURL(raw)
	var wrong *url.Error
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("rueidisgo: the URL cannot be read: %w", wrong.Err)
	case err != nil:
		return nil, fmt.Errorf("rueidisgo: the URL cannot be read: %w", err)
	}
	return New(option)
}

// New returns a Client of the servers that a client with this option asks: those of a cluster, the primary that
// sentinels name, or a single server. It is the caller's to close. It takes the option because a client does not say
// its own.
//
// ReplicaOnly is refused, as only primaries grant. What the option says of the client's own connections, caches and
// retries has no meaning here.
func New(option rueidis.ClientOption, options ...swlimit.ClientOption) (*swlimit.Client, error) {
	switch {
	case len(option.InitAddress) == 0:
		return nil, errors.New("rueidisgo: ClientOption needs an InitAddress")
	case option.ReplicaOnly:
		return nil, errors.New("rueidisgo: ReplicaOnly is not supported: only primaries grant")
	}
	server := serverOf(&option)
	switch {
	case option.Sentinel.MasterSet != "":
		sentinels := option
		sentinels.Username, sentinels.Password = option.Sentinel.Username, option.Sentinel.Password
		sentinels.Dialer, sentinels.TLSConfig = option.Sentinel.Dialer, option.Sentinel.TLSConfig
		sentinels.SelectDB = 0
		return swlimit.NewClient(&swlimit.Sentinel{Name: option.Sentinel.MasterSet, Addrs: option.InitAddress,
			Sentinels: serverOf(&sentinels), Server: server}, options...)
	case option.ForceSingleClient || len(option.Standalone.ReplicaAddress) > 0 || option.Standalone.EnableRedirect:
		server.Addr = option.InitAddress[0]
		return swlimit.NewClient(server, options...)
	}
	return swlimit.NewClient(&swlimit.Cluster{Addrs: option.InitAddress, Server: server}, options...)
}

// serverOf is a server as the option describes it, without the library's connections and retries.
func serverOf(o *rueidis.ClientOption) swlimit.Server {
	s := swlimit.Server{Username: o.Username, Password: o.Password, DB: o.SelectDB, TLS: o.TLSConfig,
		Dial: o.Dialer.DialContext}
	switch { // those that encrypt by themselves
	case o.DialCtxFn != nil:
		s.TLS, s.Dial = nil, func(ctx context.Context, _, addr string) (net.Conn, error) {
			return o.DialCtxFn(ctx, addr, &o.Dialer, o.TLSConfig)
		}
	case o.DialFn != nil:
		s.TLS, s.Dial = nil, func(_ context.Context, _, addr string) (net.Conn, error) {
			return o.DialFn(addr, &o.Dialer, o.TLSConfig)
		}
	}
	if o.AuthCredentialsFn != nil {
		s.Credentials = func(_ context.Context, addr string) (username, password string, err error) {
			found, err := o.AuthCredentialsFn(rueidis.AuthCredentialsContext{Address: address(addr)})
			return found.Username, found.Password, err
		}
	}
	return s
}

// address is a server's, as the client would give it.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }
