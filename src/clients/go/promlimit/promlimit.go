// Package promlimit shows limiters and what is known of their servers to Prometheus, by
// github.com/prometheus/client_golang. The names are the same in every language.
package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/swlimit/swlimit/src/clients/go"
)

var (
	decisions = prometheus.NewDesc("swlimit_client_decisions_total", "Decisions.",
		[]string{"limit", "source", "granted"}, nil)
	unavailable = prometheus.NewDesc("swlimit_client_server_unavailable", "1 while decisions are made without the server.",
		[]string{"server"}, nil)
	slow = prometheus.NewDesc("swlimit_client_server_slow", "1 while replies come after the timeout.",
		[]string{"server"}, nil)
	script = prometheus.NewDesc("swlimit_client_server_script", "1 if the script decides, not the module.",
		[]string{"server"}, nil)
	trip = prometheus.NewDesc("swlimit_client_server_round_trip_seconds", "The smoothed time that replies take.",
		[]string{"server"}, nil)
	evicts = prometheus.NewDesc("swlimit_client_server_evicts", "1 if the server may evict counts.",
		[]string{"server"}, nil)
	lacks = prometheus.NewDesc("swlimit_client_lacks", "1 if the server refuses this right.",
		[]string{"server", "right"}, nil)
	taken = prometheus.NewDesc("swlimit_client_taken_over_total", "Keys of the script that the module took over.",
		nil, nil)
)

// Limits are limiters of any kind, by the names that metrics show.
type Limits map[string]interface{ Statistics() swlimit.Statistics }

// NewCollector returns a collector of a client, which may be nil, and of limiters. It asks nothing of a server.
func NewCollector(client *swlimit.Client, limits Limits) prometheus.Collector {
	return &collector{client, limits}
}

type collector struct {
	client *swlimit.Client
	limits Limits
}

// Describe says which metrics there are.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, each := range []*prometheus.Desc{decisions, unavailable, slow, script, trip, evicts, lacks, taken} {
		out <- each
	}
}

// Collect shows what is so now.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	show := func(what *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(what, kind, value, labels...)
	}
	takenOver := int64(0)
	for name, limit := range c.limits {
		counted := limit.Statistics()
		for source, n := range counted.By() {
			show(decisions, prometheus.CounterValue, float64(n.Granted), name, string(source), "yes")
			show(decisions, prometheus.CounterValue, float64(n.Denied), name, string(source), "no")
		}
		takenOver = max(takenOver, counted.TakenOver)
	}
	show(taken, prometheus.CounterValue, float64(takenOver))
	if c.client == nil {
		return
	}
	for _, s := range c.client.Servers() {
		show(unavailable, prometheus.GaugeValue, one(s.State == "unavailable"), s.Addr)
		show(slow, prometheus.GaugeValue, one(s.State == "slow"), s.Addr)
		show(script, prometheus.GaugeValue, one(s.Backend == "script"), s.Addr)
		show(evicts, prometheus.GaugeValue, one(s.Evicts), s.Addr)
		for _, right := range s.Lacks {
			show(lacks, prometheus.GaugeValue, 1, s.Addr, right)
		}
		show(trip, prometheus.GaugeValue, s.RoundTrip.Seconds(), s.Addr)
	}
}

func one(isSo bool) float64 {
	if isSo {
		return 1
	}
	return 0
}
