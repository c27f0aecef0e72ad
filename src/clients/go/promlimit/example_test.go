package promlimit_test

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/promlimit"
)

func ExampleNewCollector() {
	search, err := swlimit.New(nil, swlimit.Quota{Limit: 2, Window: time.Minute})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(promlimit.NewCollector(nil, promlimit.Limits{"search": search}))
	for range 3 {
		if _, err := search.Allow(context.Background(), "user:1"); err != nil {
			panic(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if value := metric.GetCounter().GetValue(); value > 0 {
				fmt.Print(family.GetName())
				for _, label := range metric.GetLabel() {
					fmt.Printf(" %s=%s", label.GetName(), label.GetValue())
				}
				fmt.Println(":", value)
			}
		}
	}
	// Unordered output:
	// swlimit_client_decisions_total granted=no limit=search source=local: 1
	// swlimit_client_decisions_total granted=yes limit=search source=local: 2
}
