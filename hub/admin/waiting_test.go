package admin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// aRequest returns a join request that a device made some time ago.
func aRequest(t testing.TB, node string, ago time.Duration) *certv1.CertificateSigningRequest {
	t.Helper()
	return &certv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-0011223344556677", CreationTimestamp: admintest.Ago(ago), Annotations: map[string]string{
			state.RequestNode: node, state.RequestSite: "oslo", state.RequestMachine: "c0ffee0011223344", state.RequestSerial: "100000001234abcd", state.RequestSource: "10.20.30.40",
			state.RequestKey: strings.Repeat("00ff", 16), state.RequestUntil: admintest.Now.Add(300 * time.Hour).UTC().Format(time.RFC3339),
		}},
		Spec: certv1.CertificateSigningRequestSpec{Request: emptyRequest(t), SignerName: state.SignerDevice, Usages: []certv1.KeyUsage{certv1.UsageClientAuth}, Username: "join-token:abcdefghij"},
	}
}

func TestAnAdministratorDecidesAboutDevicesThatWait(t *testing.T) {
	m := admintest.New(admintest.Node("pi-1", "oslo", nil), aRequest(t, "pi-1", time.Hour), aRequest(t, "kiosk-7", time.Minute))
	s := acting(t, m)
	decision := func(name string) state.Decision {
		return state.DecisionOn(m.Snapshot().Get(state.Key{Kind: state.JoinRequests, Name: name + "-0011223344556677"}).(*certv1.CertificateSigningRequest))
	}
	for _, role := range []string{"admin", "viewer"} {
		for path, says := range map[string][]string{
			"/devices/waiting": {"kiosk-7", "c0ffee0011223344", "100000001234abcd", "10.20.30.40", "join-token:abcdefghij", "There is a node pi-1"},
			"/":                {"2 devices", "/devices/waiting"},
		} {
			_, body := s.ask(t, role, "GET", path, nil)
			for _, part := range says {
				if !strings.Contains(body, part) {
					t.Errorf("%s at %s does not read %q", role, path, part)
				}
			}
			if offers := strings.Contains(body, ">Approve</button>"); offers != (role == "admin" && path != "/") {
				t.Errorf("%s at %s may approve: %v", role, path, offers)
			}
		}
	}
	item := func(name string) url.Values {
		return url.Values{"item": {m.Form(state.JoinRequests, "", name+"-0011223344556677")}}
	}
	approve, deny := "/actions/certificatesigningrequests/approve", "/actions/certificatesigningrequests/deny"
	for _, role := range []string{"viewer", "operator"} {
		if code, _ := s.do(t, role, approve, item("kiosk-7")); code != http.StatusForbidden || decision("kiosk-7") != state.RequestPending {
			t.Errorf("%s approves: %d, %s", role, code, decision("kiosk-7"))
		}
	}
	if resp, _ := s.ask(t, "admin", "POST", approve, item("kiosk-7"), "Cookie", nameHeader+"=admin"); resp.StatusCode != http.StatusForbidden || decision("kiosk-7") != state.RequestPending {
		t.Errorf("without the form's token: %d, %s", resp.StatusCode, decision("kiosk-7"))
	}
	if code, body := s.do(t, "admin", approve, item("kiosk-7")); code != http.StatusOK || decision("kiosk-7") != state.RequestApproved {
		t.Errorf("approve: %d, %s\n%s", code, decision("kiosk-7"), mainOf(body))
	}
	if s.do(t, "admin", deny, item("kiosk-7")); decision("kiosk-7") != state.RequestApproved {
		t.Errorf("the approved device was denied: %s", decision("kiosk-7"))
	}
	// A newer request with the same name is not the one that the user saw.
	other := item("pi-1")
	other.Set("item", strings.Replace(other.Get("item"), "=", "=x", 1))
	if s.do(t, "admin", approve, other); decision("pi-1") != state.RequestPending {
		t.Error("a newer request was approved instead of the shown one")
	}
	if code, _ := s.do(t, "admin", deny, item("pi-1")); code != http.StatusOK || decision("pi-1") != state.RequestDenied {
		t.Errorf("deny: %d, %s", code, decision("pi-1"))
	}
	if _, body := s.ask(t, "admin", "GET", "/devices/waiting", nil); !strings.Contains(body, "No device waits") || !strings.Contains(body, "Denied") {
		t.Errorf("afterwards:\n%s", mainOf(body))
	}
}

// The latest of many decided requests are shown, not the first by name.
func TestTheLatestDecisionsAreShown(t *testing.T) {
	var objects []state.Object
	for i := range frame.PerPage + 20 {
		r := aRequest(t, fmt.Sprintf("pi-%03d", i), time.Hour)
		r.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: certv1.CertificateDenied, Status: "True", LastTransitionTime: admintest.Ago(time.Hour - time.Duration(i)*time.Second)}}
		objects = append(objects, r)
	}
	_, body := start(t, configOf(admintest.New(objects...))).ask(t, "admin", "GET", "/devices/waiting", nil)
	rows := regexp.MustCompile(`<tr data-key="(pi-\d+)-`).FindAllStringSubmatch(body, -1)
	if len(rows) != frame.PerPage || rows[0][1] != "pi-119" || rows[frame.PerPage-1][1] != "pi-020" {
		t.Errorf("%d rows: %v", len(rows), rows)
	}
}

func TestDevicesThatWaitAreReadable(t *testing.T) {
	t.Parallel()
	long := aRequest(t, strings.Repeat("a-very-long-name.", 3)+"kiosk", time.Minute)
	long.Annotations[state.RequestSource] = "2001:db8:1234:5678:9abc:def0:1234:5678"
	k := newKit(t, append(toolObjects(), aRequest(t, "pi-1", time.Hour), aRequest(t, "kiosk-7", time.Minute), long)...)
	k.open("/devices/waiting")
	k.says("kiosk-7", "100000001234abcd", "Approve", "Deny", "Act on all 3 requests")
	k.look("waiting devices")
	k.open("/devices/add")
	k.says("3 devices", "Wait for approval")
	k.look("add a device while others wait")
	k.open("/devices/waiting")
	k.press(`li[data-key="kiosk-7-0011223344556677"] button`)
	k.awaits("kiosk-7-0011223344556677 is approved") // on this page, or on the job's page if the action takes longer than two seconds
	k.open("/devices/waiting")
	k.says("Decided lately")
	k.look("waiting devices, one approved")
}

// emptyRequest returns a certificate request without a name.
func emptyRequest(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}
