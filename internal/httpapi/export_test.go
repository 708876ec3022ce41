package httpapi

import (
	"slices"
	"strings"
)

// Paths are those that the server has routes for, as OpenAPI writes them.
func (s *Server) Paths() []string {
	var out []string
	for _, r := range s.app.GetRoutes(true) {
		path := r.Path
		for _, name := range r.Params {
			path = strings.Replace(path, ":"+name, "{"+name+"}", 1)
		}
		out = append(out, path)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SetConnectionLimit sets how many connections are served at one time. It must
// be called before Run.
func (s *Server) SetConnectionLimit(n int64) { s.edge.limit = n }

// OpenConnections is how many there are.
func (s *Server) OpenConnections() int64 { return s.edge.open.Load() }
