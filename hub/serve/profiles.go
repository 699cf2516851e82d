package serve

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"

	"flotilla.dev/hub/kube"
)

// maxProfile limits the seconds of a CPU profile or trace, because it slows the hub.
const maxProfile = 60

// profiles serves the profiles of `go tool pprof`, to administrators only, because heaps and stacks
// show internals. The command line is omitted, because flags may contain secrets.
func profiles() (all []other) {
	add := func(name string, h http.Handler) {
		all = append(all, other{kube.Other{Path: "/debug/pprof/" + name, Verb: "get", Resource: "profiles"}, bounded(h)})
	}
	add("profile", http.HandlerFunc(pprof.Profile))
	add("trace", http.HandlerFunc(pprof.Trace))
	for _, name := range []string{"allocs", "goroutine", "heap"} {
		add(name, pprof.Handler(name))
	}
	return all
}

func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text := r.URL.Query().Get("seconds"); text != "" {
			if n, err := strconv.ParseFloat(text, 64); err != nil || !(n > 0 && n <= maxProfile) {
				http.Error(w, fmt.Sprintf("seconds is %.20q: write a number up to %d", text, maxProfile), http.StatusBadRequest)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
