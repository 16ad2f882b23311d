package backend

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Registered registers a collector, or returns the one that is registered already: two managers in one process share
// their metrics.
func Registered[C prometheus.Collector](registry prometheus.Registerer, c C) (C, error) {
	err := registry.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("registering metrics: %w", err)
	}
	return c, nil
}
