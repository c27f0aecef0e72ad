// Package goredis has limiters share the settings of clients of github.com/redis/go-redis/v9.
//
// Limiters open connections of their own, as such a client would: to the same addresses, with its credentials and its
// TLS. The client itself would send a command again whose reply was lost, and count it twice; it would close a
// connection whose reply nobody waits for any more, and with it the news of what was granted.
package goredis

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/clients/go"
)

// Open returns a limiter of one rate such as "100/minute", as [swlimit.ParseQuota] reads it, on the server of a URL as
// [redis.ParseURL] takes it. Its Close closes its connections.
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
	parsed, err := redis.ParseURL(raw)
	var wrong *url.Error
	switch {
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("goredis: the URL cannot be read: %w", wrong.Err)
	case err != nil:
		return nil, fmt.Errorf("goredis: the URL cannot be read: %w", err)
	}
	return FromOptions(parsed)
}

// New returns a Client of the servers of a client: a *redis.Client or a *redis.ClusterClient. It is the caller's to
// close. The client's options are taken, not the client: it may be closed before, and its hooks see no command of a
// limiter.
//
// A client of Sentinel is refused, because it does not say where its sentinels are: see [FromFailover]. So is a Ring,
// whose keys move whenever one of its servers is away.
func New(client redis.UniversalClient, options ...swlimit.ClientOption) (*swlimit.Client, error) {
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, errors.New("goredis: the client is nil")
	}
	switch client := client.(type) {
	case *redis.Client:
		return FromOptions(client.Options(), options...)
	case *redis.ClusterClient:
		return FromClusterOptions(client.Options(), options...)
	case *redis.Ring:
		return nil, errors.New("goredis: a redis.Ring is not supported, because its keys move whenever " +
			"a server is away: use a cluster")
	}
	return nil, fmt.Errorf("goredis: a %T is not supported: give a *redis.Client or a *redis.ClusterClient", client)
}

// FromOptions returns a Client of the server that options name. Where that is one of a cluster, see
// [swlimit.FollowCluster].
func FromOptions(o *redis.Options, options ...swlimit.ClientOption) (*swlimit.Client, error) {
	if o.Addr == "FailoverClient" {
		return nil, errors.New("goredis: a client of Sentinel does not say where its sentinels are: " +
			"use goredis.FromFailover with its options")
	}
	s := server(o)
	switch { // as go-redis completes them
	case s.Addr == "":
		s.Addr = "localhost:6379"
	case s.Network == "" && strings.HasPrefix(s.Addr, "/"):
		s.Network = "unix"
	}
	return swlimit.NewClient(s, options...)
}

// FromClusterOptions returns a Client of the cluster that options name.
func FromClusterOptions(o *redis.ClusterOptions, options ...swlimit.ClientOption) (*swlimit.Client, error) {
	if o.ClusterSlots != nil {
		return nil, errors.New("goredis: ClusterSlots is not supported: the cluster says which server has which slots")
	}
	if len(o.Addrs) == 0 {
		return nil, errors.New("goredis: ClusterOptions need Addrs")
	}
	return swlimit.NewClient(&swlimit.Cluster{Addrs: o.Addrs, Server: server(&redis.Options{Username: o.Username,
		Password: o.Password, Dialer: o.Dialer, TLSConfig: o.TLSConfig, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext:   o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider})}, options...)
}

// FromFailover returns a Client of the primary that the sentinels of options name: see [swlimit.Sentinel].
func FromFailover(o *redis.FailoverOptions, options ...swlimit.ClientOption) (*swlimit.Client, error) {
	if o.MasterName == "" || len(o.SentinelAddrs) == 0 {
		return nil, errors.New("goredis: FailoverOptions need a MasterName and SentinelAddrs")
	}
	return swlimit.NewClient(&swlimit.Sentinel{Name: o.MasterName, Addrs: o.SentinelAddrs,
		Sentinels: server(&redis.Options{Username: o.SentinelUsername, Password: o.SentinelPassword, Dialer: o.Dialer,
			TLSConfig: o.TLSConfig}),
		Server: server(&redis.Options{Username: o.Username, Password: o.Password, DB: o.DB, Dialer: o.Dialer,
			TLSConfig: o.TLSConfig, CredentialsProvider: o.CredentialsProvider,
			CredentialsProviderContext:   o.CredentialsProviderContext,
			StreamingCredentialsProvider: o.StreamingCredentialsProvider})}, options...)
}

// server is a server as a client's options describe it, without the library's pools and retries.
func server(o *redis.Options) swlimit.Server {
	s := swlimit.Server{Addr: o.Addr, Network: o.Network, Username: o.Username, Password: o.Password, DB: o.DB,
		TLS: o.TLSConfig}
	if o.Dialer != nil { // which encrypts by itself
		s.Dial, s.TLS = o.Dialer, nil
	}
	switch {
	case o.StreamingCredentialsProvider != nil:
		s.Credentials = func(context.Context, string) (string, string, error) {
			return "", "", errors.New("goredis: a StreamingCredentialsProvider is not supported: use CredentialsProviderContext")
		}
	case o.CredentialsProviderContext != nil:
		s.Credentials = func(ctx context.Context, _ string) (string, string, error) {
			return o.CredentialsProviderContext(ctx)
		}
	case o.CredentialsProvider != nil:
		s.Credentials = func(context.Context, string) (string, string, error) {
			username, password := o.CredentialsProvider()
			return username, password, nil
		}
	}
	return s
}
