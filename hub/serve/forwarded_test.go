package serve

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"flotilla.dev/hub/cluster"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/peer"
)

// A user's requests through a standby have the same limit at the leader as direct requests.
func TestForwardedRequestsCountForTheirUser(t *testing.T) {
	hub, people := wholeHub(t)
	comes, release := make(chan bool), make(chan struct{})
	leads := peer.Accept(cluster.WatchSessions(hub.Guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := hub.Guard.Authenticate(r)
		if comes <- err == nil; err != nil {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		<-release
	})), func(leader.Status) {})
	var all sync.WaitGroup
	ask := func(who string) (ok bool) {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?watch=1", nil)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "hub-b"}}}}
			r.Header.Set("X-Forwarded-For", "192.0.2.7")
			people[who](r)
			leads.ServeHTTP(httptest.NewRecorder(), r)
		})
		return <-comes
	}
	for i := range listen.UserRequests {
		if !ask("viewer") {
			t.Fatalf("request %d is refused", i+1)
		}
	}
	if ask("viewer") {
		t.Error("a request beyond the user's limit is accepted")
	}
	if !ask("operator") {
		t.Error("another user is refused")
	}
	close(release)
	all.Wait()
	if release = make(chan struct{}); !ask("viewer") {
		t.Error("ended requests still count for their user")
	}
	close(release)
	all.Wait()
}

// A device chooses its own name, which may be a user's. A device's request through a standby must
// not count for that user.
func TestAForwardedDeviceIsNotAUser(t *testing.T) {
	hub, people := wholeHub(t)
	leads := peer.Accept(cluster.WatchSessions(hub.Guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := hub.Guard.Authenticate(r); err != nil {
			t.Error(err)
		}
	})), func(leader.Status) {})
	for who, name := range map[string]string{"viewer": "viewer-1", "device": ""} {
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
		people[who](r)
		if r.TLS != nil {
			header := []string{"Client-Cert", "Client-Cert-Chain"}
			for i, c := range r.TLS.PeerCertificates {
				r.Header.Set(header[i], ":"+base64.StdEncoding.EncodeToString(c.Raw)+":")
			}
		}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "hub-b"}}}}
		r.Header.Set("X-Forwarded-For", "192.0.2.7")
		w := httptest.NewRecorder()
		leads.ServeHTTP(w, r)
		if got := w.Header().Get("Flotilla-Caller"); w.Code != http.StatusOK || got != name {
			t.Errorf("a %s is forwarded as user %q, want %q: %d %s", who, got, name, w.Code, w.Body)
		}
	}
}
