package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/shared/wire"
)

var updateRoutes = flag.Bool("update-routes", false,
	"write testdata/routes.txt anew; look at what has changed before it is committed")

// A once is a response that ends its request when a stream begins.
type once struct {
	*httptest.ResponseRecorder
	end context.CancelFunc
}

func (o once) Flush() { o.ResponseRecorder.Flush(); o.end() }

// Every registered route, and every verb of every resource, is requested by every kind of user.
// testdata/routes.txt lists the allowed users; a route that is missing there has no decision yet.
// POST /login and /setup need a password or the setup link.
func TestEveryRouteHasADecision(t *testing.T) {
	hub, people := wholeHub(t)
	e, h := hub.web().routes, hub.Handler()
	got := map[string][]string{}
	for _, name := range []string{"stranger", "device", "viewer", "operator", "admin"} {
		show := people[name]
		ask := func(method, path string) *httptest.ResponseRecorder {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := httptest.NewRequest(method, path, strings.NewReader("")).WithContext(ctx)
			r.Host, r.TLS = "127.0.0.1:8443", &tls.ConnectionState{}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if strings.HasPrefix(path, "/api") {
				r.Header.Set("Content-Type", "application/merge-patch+json")
			}
			show(r)
			w := once{httptest.NewRecorder(), cancel}
			func() {
				defer func() { // the handler aborts, because its client has disconnected
					if p := recover(); p != nil && p != http.ErrAbortHandler {
						panic(p)
					}
				}()
				h.ServeHTTP(w, r)
			}()
			return w.ResponseRecorder
		}
		note := func(route, method, path string) {
			w := ask(method, path)
			login := strings.HasPrefix(w.Header().Get("Location"), "/login") && !strings.HasPrefix(path, "/log")
			if w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden && !login {
				got[route] = append(got[route], name)
			} else if got[route] == nil {
				got[route] = []string{}
			}
		}
		fill := strings.NewReplacer(":name", "x", ":namespace", "default", "*", "x")
		for _, r := range e.Routes() {
			if strings.HasPrefix(r.Path, "/api") && r.Method != http.MethodGet || r.Method == "PROPFIND" ||
				r.Method == "REPORT" || r.Method == http.MethodConnect || r.Method == http.MethodTrace ||
				r.Method == http.MethodOptions {
				continue // a route for any method; its requests are below
			}
			if r.Method == "echo_route_not_found" {
				continue
			}
			note(r.Method+" "+r.Path, r.Method, fill.Replace(r.Path))
		}
		for _, r := range resourcesOf(t, people["admin"], h) {
			note(r.route, r.method, r.path)
		}
	}
	var lines []string
	for route, may := range got {
		lines = append(lines, route+": "+strings.Join(may, " "))
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n") + "\n"
	const file = "testdata/routes.txt"
	if *updateRoutes {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decided := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, l := range lines {
		if !slices.Contains(decided, l) {
			t.Errorf("%s lacks: %s", file, l)
		}
	}
	for _, l := range decided {
		if !slices.Contains(lines, l) {
			t.Errorf("%s has an outdated line: %s", file, l)
		}
	}
}

// wholeHub returns a hub without listeners, and the authentication of each kind of user.
func wholeHub(t *testing.T) (*Hub, map[string]func(*http.Request)) {
	ctx := t.Context()
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	hub, err := New(ctx, Options{Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler),
		Listeners: Listeners{Dev: pipe.New()}})
	must(err)
	running, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- hub.Run(running) }()
	t.Cleanup(func() { stop(); <-over })
	<-hub.Up()
	guard := hub.Guard

	people := map[string]func(*http.Request){"stranger": func(*http.Request) {}}
	for _, role := range []access.Role{access.Viewer, access.Operator, access.Admin} {
		name := string(role)
		must(guard.CreateUser(ctx, access.NewUser{Name: name + "-1", Password: "correct horse battery", Role: role}))
		token, err := guard.CreateAPIToken(ctx, access.NewAPIToken{User: name + "-1", Life: time.Hour})
		must(err)
		people[name] = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	join, err := guard.CreateJoinToken(ctx, access.NewJoinToken{Site: "oslo", Uses: 1, Life: time.Hour, By: "admin"})
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(err)
	answer, err := guard.Join(ctx, wire.JoinRequest{Token: join.Text(), Node: "pi-1", MachineID: "m1",
		CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))}, "192.0.2.1")
	must(err)
	var chain []*x509.Certificate
	for rest := []byte(answer.Certificate); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		must(err)
		chain = append(chain, c)
	}
	people["device"] = func(r *http.Request) { r.TLS = &tls.ConnectionState{PeerCertificates: chain} }
	return hub, people
}

type apiRoute struct{ route, method, path string }

// resourcesOf returns the resources in discovery, with their verbs.
func resourcesOf(t *testing.T, show func(*http.Request), h http.Handler) (all []apiRoute) {
	get := func(path string, into any) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "127.0.0.1:8443"
		r.TLS = &tls.ConnectionState{}
		show(r)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), into); w.Code != 200 || err != nil {
			t.Fatalf("%s: %d %v %.200s", path, w.Code, err, w.Body)
		}
	}
	var groups metav1.APIGroupList
	get("/apis", &groups)
	bases := []string{"/api/v1"}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			bases = append(bases, "/apis/"+v.GroupVersion)
		}
	}
	methods := map[string]string{"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT",
		"patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
	for _, base := range bases {
		var list metav1.APIResourceList
		get(base, &list)
		for _, r := range list.APIResources {
			for _, verb := range r.Verbs {
				path := base
				if r.Namespaced {
					path += "/namespaces/none"
				}
				name, sub, isSub := strings.Cut(r.Name, "/")
				path += "/" + name
				if isSub || slices.Contains([]string{"get", "update", "patch", "delete"}, verb) {
					path += "/x"
				}
				if isSub {
					path += "/" + sub
				}
				if verb == "watch" {
					path += "?watch=true"
				}
				all = append(all, apiRoute{verb + " " + base + " " + r.Name, methods[verb], path})
			}
		}
	}
	return all
}
