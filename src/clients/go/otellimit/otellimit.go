// Package otellimit shows limiters and what is known of their servers as metrics of OpenTelemetry. The names are the
// same in every language.
package otellimit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/swlimit/swlimit/src/clients/go"
)

// Limits are limiters of any kind, by the names that metrics show.
type Limits map[string]interface{ Statistics() swlimit.Statistics }

// Register has a meter observe a client, which may be nil, and limiters, until the registration ends. It asks nothing
// of a server.
func Register(meter metric.Meter, client *swlimit.Client, limits Limits) (metric.Registration, error) {
	var faults []error
	counter := func(name, what string) metric.Int64ObservableCounter {
		made, err := meter.Int64ObservableCounter("swlimit_client_"+name, metric.WithDescription(what))
		faults = append(faults, err)
		return made
	}
	gauge := func(name, what string) metric.Int64ObservableGauge {
		made, err := meter.Int64ObservableGauge("swlimit_client_server_"+name, metric.WithDescription(what))
		faults = append(faults, err)
		return made
	}
	decisions := counter("decisions", "Decisions.")
	taken := counter("taken_over", "Keys of the script that the module took over.")
	unavailable := gauge("unavailable", "1 while decisions are made without the server.")
	slow := gauge("slow", "1 while replies come after the timeout.")
	script := gauge("script", "1 if the script decides, not the module.")
	evicts := gauge("evicts", "1 if the server may evict counts.")
	trip, err := meter.Float64ObservableGauge("swlimit_client_server_round_trip", metric.WithUnit("s"),
		metric.WithDescription("The smoothed time that replies take."))
	lacks, fault := meter.Int64ObservableGauge("swlimit_client_lacks", metric.WithDescription("1 if the server refuses this right."))
	if err := errors.Join(append(faults, err, fault)...); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		takenOver := int64(0)
		for name, limit := range limits {
			counted := limit.Statistics()
			for source, n := range counted.By() {
				for granted, units := range map[string]int64{"yes": n.Granted, "no": n.Denied} {
					o.ObserveInt64(decisions, units, metric.WithAttributes(attribute.String("limit", name),
						attribute.String("source", string(source)), attribute.String("granted", granted)))
				}
			}
			takenOver = max(takenOver, counted.TakenOver)
		}
		o.ObserveInt64(taken, takenOver)
		if client == nil {
			return nil
		}
		for _, s := range client.Servers() {
			server := metric.WithAttributes(attribute.String("server", s.Addr))
			o.ObserveInt64(unavailable, one(s.State == "unavailable"), server)
			o.ObserveInt64(slow, one(s.State == "slow"), server)
			o.ObserveInt64(script, one(s.Backend == "script"), server)
			o.ObserveInt64(evicts, one(s.Evicts), server)
			for _, right := range s.Lacks {
				o.ObserveInt64(lacks, 1, metric.WithAttributes(attribute.String("server", s.Addr), attribute.String("right", right)))
			}
			o.ObserveFloat64(trip, s.RoundTrip.Seconds(), server)
		}
		return nil
	}, decisions, taken, unavailable, slow, script, evicts, lacks, trip)
}

func one(isSo bool) int64 {
	if isSo {
		return 1
	}
	return 0
}
