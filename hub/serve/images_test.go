package serve

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/registry"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Docker sends an API token as the password of a basic login. The role of the token's user decides
// what it may do.
func TestRolesDecideWhoPullsAndPushesImages(t *testing.T) {
	hub, people := wholeHub(t)
	for _, c := range []struct {
		who          string
		pull, upload int
	}{
		{"stranger", 401, 401}, {"viewer", 200, 403}, {"operator", 200, 202}, {"admin", 200, 202}, {"device", 200, 403},
	} {
		for path, want := range map[string]int{"GET /v2/": c.pull, "POST /v2/app/blobs/uploads/": c.upload} {
			method, path, _ := strings.Cut(path, " ")
			q := httptest.NewRequest(method, "https://127.0.0.1"+path, nil)
			people[c.who](q)
			if token, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer "); ok {
				q.SetBasicAuth("anything", token)
			}
			w := httptest.NewRecorder()
			hub.Handler().ServeHTTP(w, q)
			if w.Code != want {
				t.Errorf("%s: %s %s: %d %s, want %d", c.who, method, path, w.Code, w.Body, want)
			}
			if basic := w.Header().Get("WWW-Authenticate"); (w.Code == http.StatusUnauthorized) != strings.HasPrefix(basic,
				"Basic ") {
				t.Errorf("%s: %s %s: WWW-Authenticate %q", c.who, method, path, basic)
			}
		}
	}
	q := httptest.NewRequest("GET", "https://127.0.0.1/v2/", nil)
	q.SetBasicAuth("root", "FLA1.wrong.wrong")
	w := httptest.NewRecorder()
	hub.Handler().ServeHTTP(w, q)
	if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), "wrong, revoked or expired") {
		t.Errorf("a wrong token: %d %s; want 401 with %q", w.Code, w.Body, "wrong, revoked or expired")
	}
}

func TestImagesInUseAreFound(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "shop", "till"
	pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "hub/till:1.2"}, {Name: "b", Image: "hub/b@sha256:bb"},
		{Name: "c", Image: "nginx:1"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{ImageID: "sha256:aa"}}
	s, _ := state.Apply(state.Empty("test", time.Now()), []state.Change{{Object: pod}})
	if got := strings.Join(imagesUsed(s), " "); got != "sha256:aa sha256:bb" {
		t.Errorf("the images in use are %s, want sha256:aa and sha256:bb", got)
	}
	if by := imageUser(s, "hub/till:1.2"); !strings.Contains(by, "shop/till") {
		t.Errorf("hub/till:1.2 is used by %q", by)
	}
	if by := imageUser(s, "hub/docker.io/library/nginx:1"); !strings.Contains(by, "shop/till") {
		t.Errorf("the mirrored nginx:1 is used by %q", by)
	}
	if by := imageUser(s, "hub/till:1.3"); by != "" {
		t.Errorf("hub/till:1.3 is used by %q", by)
	}
}

func TestADeviceIsSentToANeighbourThatHasABlob(t *testing.T) {
	hub, people := wholeHub(t)
	blob := "hello"
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(blob)))
	do := func(who, method, path, body string, headers ...string) *httptest.ResponseRecorder {
		t.Helper()
		q := httptest.NewRequest(method, "https://127.0.0.1"+path, strings.NewReader(body))
		people[who](q)
		for i := 0; i+1 < len(headers); i += 2 {
			q.Header.Set(headers[i], headers[i+1])
		}
		w := httptest.NewRecorder()
		hub.Handler().ServeHTTP(w, q)
		return w
	}
	if w := do("operator", "POST", "/v2/app/blobs/uploads/?digest="+digest, blob); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	share := func(on bool) {
		t.Helper()
		_, err := hub.Loop.Do(t.Context(), func(s state.Snapshot, _ time.Time) (all []state.Change, err error) {
			for i, name := range []string{"pi-0", "pi-1"} {
				n := &corev1.Node{}
				n.Name, n.Labels = name, map[string]string{corev1.LabelTopologyZone: "oslo"}
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("192.0.2.", i)}}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
				all = append(all, state.Put(n, ""))
			}
			site := &fleet.Site{Spec: fleet.SiteSpec{ShareImages: on}}
			site.Name = "oslo"
			return append(all, state.Put(site, "")), nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	share(true)
	first := registry.Device{Node: "pi-0", Address: "192.0.2.0:5444"}
	hub.peers.Ask("oslo", first, digest, time.Now(), func(registry.Device) bool { return true })
	for _, c := range []struct {
		rule    string
		shares  bool
		who     string
		headers []string
		peers   string
	}{
		{"a device that shares", true, "device", []string{wire.HeaderPeerPort, "5444"}, "192.0.2.0:5444"},
		{"an older agent", true, "device", nil, ""},
		{"a neighbour that failed", true, "device", []string{wire.HeaderPeerPort, "5444", wire.HeaderNotFrom, "192.0.2.0:5444"}, ""},
		{"a user", true, "viewer", []string{wire.HeaderPeerPort, "5444"}, ""},
		{"a site that does not share", false, "device", []string{wire.HeaderPeerPort, "5444"}, ""},
	} {
		share(c.shares)
		w := do(c.who, "GET", "/v2/app/blobs/"+digest, "", c.headers...)
		if got := w.Header().Get(wire.HeaderPeers); got != c.peers || (w.Body.String() == blob) != (c.peers == "") {
			t.Errorf("%s: sent to %q, %d %q", c.rule, got, w.Code, w.Body)
		}
	}
}
