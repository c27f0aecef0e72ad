package otellimit_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/otellimit"
)

func TestObserves(t *testing.T) {
	ctx := context.Background()
	client, err := swlimit.NewClient(swlimit.Server{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	search, err := swlimit.New(client, swlimit.Quota{Limit: 2, Window: time.Minute}, swlimit.OnFailure(swlimit.FailDeny))
	if err != nil {
		t.Fatal(err)
	}
	reader := metric.NewManualReader()
	meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	registration, err := otellimit.Register(meter, client, otellimit.Limits{"search": search})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = registration.Unregister() }()
	for until := time.Now().Add(20 * time.Second); client.Servers() == nil ||
		len(client.Servers()) == 0 || client.Servers()[0].State != "unavailable"; {
		if _, err := search.Allow(ctx, "user:1"); err != nil || time.Now().After(until) {
			t.Fatal(err)
		}
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		t.Fatal(err)
	}
	denied, unavailable := int64(0), int64(0)
	for _, each := range all.ScopeMetrics[0].Metrics {
		switch data := each.Data.(type) {
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				granted, _ := point.Attributes.Value("granted")
				source, _ := point.Attributes.Value("source")
				if granted.AsString() == "no" && source.AsString() == "failure" {
					denied = point.Value
				}
			}
		case metricdata.Gauge[int64]:
			if each.Name == "swlimit_client_server_unavailable" {
				unavailable = data.DataPoints[0].Value
			}
		}
	}
	if n := search.Statistics().Failure; denied != n.Denied || n.Denied == 0 || n.Granted != 0 || unavailable != 1 {
		t.Errorf("%d denied of %+v, unavailable %d", denied, n, unavailable)
	}
}
