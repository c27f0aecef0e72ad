package tests

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	swlimit "github.com/swlimit/swlimit/src/clients/go"
)

// miniredis, a server for tests, runs the script: rates, budgets, holds and several limits.
func TestMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	client, err := swlimit.NewClient(swlimit.Server{Addr: server.Addr()})
	require.NoError(t, err)
	defer client.Close()
	background := context.Background()
	strict := []swlimit.Option{swlimit.Timeout(20 * time.Second), swlimit.OnFailure(swlimit.FailError)}

	limiter, err := swlimit.New(client, swlimit.Quota{Limit: 2, Window: time.Minute}, strict...)
	require.NoError(t, err)
	for want := range 4 {
		decision, err := limiter.Allow(background, "k")
		require.NoError(t, err)
		require.Equal(t, want < 2, decision.Allowed(), "%+v", decision)
	}

	budget, err := swlimit.NewBudget(client, 2, swlimit.Daily(), nil, strict...)
	require.NoError(t, err)
	for want := range 3 {
		decision, err := budget.Allow(background, "b")
		require.NoError(t, err)
		require.Equal(t, want < 2, decision.Allowed(), "%+v", decision)
	}

	holds, err := swlimit.NewHolds(client, 1, 3*time.Second, strict...)
	require.NoError(t, err)
	hold, err := holds.TryAcquire(background, "h")
	require.NoError(t, err)
	_, err = holds.TryAcquire(background, "h")
	require.ErrorIs(t, err, swlimit.ErrDenied)
	time.Sleep(4 * time.Second) // beyond its time to live, so that it has been renewed
	require.True(t, hold.Live())
	hold.Release()
	again, err := holds.Acquire(background, "h")
	require.NoError(t, err)
	again.Release()
}
