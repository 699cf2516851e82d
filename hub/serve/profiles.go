package serve

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strconv"

	"flotilla.dev/hub/kube"
)

// maxProfile is how many seconds a profile may take: it costs a little as long as it runs.
const maxProfile = 60

// profiles are what `go tool pprof` reads of the running hub: for administrators only,
// as a heap's names and a goroutine's stack tell of the inside. The command line is not
// among them, whose flags may hold secrets.
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
