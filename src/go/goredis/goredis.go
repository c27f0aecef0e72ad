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
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/go"
)

// New returns a Conn to the servers of a client: a *redis.Client or a *redis.ClusterClient. It is the caller's to
// close. The client's options are taken, not the client: it may be closed before, and its hooks see no command of a
// limiter.
//
// A client of Sentinel is refused, because it does not say where its sentinels are: see [FromFailover]. So is a Ring,
// whose keys move whenever one of its servers is away.
func New(client redis.UniversalClient) (*swlimit.Conn, error) {
	switch client := client.(type) {
	case *redis.Client:
		return FromOptions(client.Options())
	case *redis.ClusterClient:
		return FromClusterOptions(client.Options())
	case *redis.Ring:
		return nil, errors.New("goredis: a redis.Ring is not supported, because its keys move whenever " +
			"a server is away: use a cluster")
	}
	return nil, fmt.Errorf("goredis: a %T is not supported: give a *redis.Client or a *redis.ClusterClient", client)
}

// FromOptions returns a Conn to the server that options name.
func FromOptions(options *redis.Options) (*swlimit.Conn, error) {
	if options.Addr == "FailoverClient" {
		return nil, errors.New("goredis: a client of Sentinel does not say where its sentinels are: " +
			"use goredis.FromFailover with its options")
	}
	return swlimit.NewConn(server(options)), nil
}

// FromClusterOptions returns a Conn to the cluster that options name.
func FromClusterOptions(options *redis.ClusterOptions) (*swlimit.Conn, error) {
	clone := *options
	clone.ContextTimeoutEnabled = true // or contexts are not obeyed
	clone.MaxRetries = -1
	return swlimit.NewConn(cluster{redis.NewClusterClient(&clone)}), nil
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
		s.Credentials = func(context.Context) (string, string, error) {
			return "", "", errors.New("goredis: a StreamingCredentialsProvider is not supported: use CredentialsProviderContext")
		}
	case o.CredentialsProviderContext != nil:
		s.Credentials = o.CredentialsProviderContext
	case o.CredentialsProvider != nil:
		s.Credentials = func(context.Context) (string, string, error) {
			username, password := o.CredentialsProvider()
			return username, password, nil
		}
	}
	return s
}

// cluster has a client say where keys are. It sends no command of a limiter.
type cluster struct {
	client *redis.ClusterClient
}

// Close ends what the client does beside.
func (c cluster) Close() error { return c.client.Close() }

func (c cluster) Primary(ctx context.Context, key string) (swlimit.Server, error) {
	node, err := c.client.MasterForKey(ctx, key)
	if err != nil {
		return swlimit.Server{}, err
	}
	return server(node.Options()), nil
}

func (c cluster) Moved(ctx context.Context, addr string) (swlimit.Server, error) {
	c.client.ReloadState(ctx)
	node, err := c.client.MasterForKey(ctx, "")
	if err != nil {
		return swlimit.Server{}, err
	}
	options := *node.Options()
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "" { // the host that was asked
		host, _, _ = net.SplitHostPort(options.Addr)
		addr = net.JoinHostPort(host, port)
	}
	options.Addr = addr
	return server(&options), nil
}
