package bootstrap

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// version is set by the linker: -X kusionstack.io/kuperator/internal/bootstrap.version=v1.2.3. Nothing else writes it.
var version string

// Version is the version that the build was given, else the one that the Go toolchain recorded (module version or
// commit), else "unknown". It is never empty and has no spaces.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(version, info)
}

// versionOf chooses between the linker's version and the toolchain's record, which may be nil.
func versionOf(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return "unknown"
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" && setting.Value != "" {
			return setting.Value
		}
	}
	return "unknown"
}

// registerBuildInfo publishes kuperator_build_info, whose value is always 1. A second registration in one process (two
// commands in a test) is no error.
func registerBuildInfo(registry prometheus.Registerer, component, componentVersion string) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: buildInfoMetric.Name,
		Help: buildInfoMetric.Help,
		ConstLabels: prometheus.Labels{
			"component":  component,
			"version":    componentVersion,
			"go_version": runtime.Version(),
		},
	})
	info.Set(1)
	if err := registry.Register(info); err != nil && !errors.As(err, &prometheus.AlreadyRegisteredError{}) {
		return fmt.Errorf("registering kuperator_build_info: %w", err)
	}
	return nil
}
