package daemon

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry with the metrics of the Go runtime and of the
// process, and paredao_build_info, which is always 1 and whose labels say what
// runs: binary, version, commit and goversion.
func NewRegistry(binary, version, commit string) *prometheus.Registry {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "paredao",
		Name:      "build_info",
		Help:      "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{
			"binary": binary, "version": version, "commit": commit, "goversion": runtime.Version(),
		},
	})
	build.Set(1)

	r := prometheus.NewRegistry()
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
