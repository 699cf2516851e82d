package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/join"
	"flotilla.dev/shared/wire"
)

// joined returns the state directory of a device that has joined.
func joined(t *testing.T) (string, join.Identity) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pi-1"},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	id := join.Identity{Node: "pi-1", Site: "oslo", HubURL: "https://gateway:8443", MQTTAddress: "gateway:8883",
		CA: cert, Certificate: cert,
		Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
	dir := t.TempDir()
	if err := join.Save(dir, id); err != nil {
		t.Fatal(err)
	}
	return dir, id
}

func TestAJoinedDeviceRefusesADevelopmentHub(t *testing.T) {
	dir, _ := joined(t)
	code, stderr := output(t, "run", "--state-dir="+dir, "--hub=mqtt://127.0.0.1:1", "--node-name=pi-2",
		"--engine=none")
	if code != 2 || !strings.Contains(stderr, "is node pi-1 of the hub at https://gateway:8443") ||
		strings.Count(strings.TrimSpace(stderr), "\n") != 0 {
		t.Errorf("exit code %d, want 2 and one line: %s", code, stderr)
	}
	for _, name := range []string{join.IdentityFile, join.IdentityCopy} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, stderr := output(t, "run", "--state-dir="+dir, "--hub=mqtt://127.0.0.1:1", "--engine=none"); code != 2 ||
		!strings.Contains(stderr, "join again") {
		t.Errorf("with a broken identity: exit %d: %s", code, stderr)
	}
}

func TestADismissalAppliesToOneKey(t *testing.T) {
	dir, id := joined(t)
	if readDismissed(dir, id) != nil {
		t.Error("a device without a dismissal file is dismissed")
	}
	d := dismissed{Dismissed: wire.Dismissed{Time: time.Date(2026, 11, 22, 5, 0, 0, 0, time.UTC), By: "kari",
		Reason: "Node pi-1 was deleted"}, Key: keyOf(id), Done: true}
	if err := d.keep(dir); err != nil {
		t.Fatal(err)
	}
	if have := readDismissed(dir, id); have == nil || *have != d {
		t.Errorf("the stored dismissal is %+v, want %+v", have, d)
	}
	_, rejoined := joined(t)
	if readDismissed(dir, rejoined) != nil {
		t.Error("a dismissal applies to another key")
	}
	var b bytes.Buffer
	if err := writeStatus(&b, localStatus{Node: "pi-1", Site: "oslo", Hub: id.HubURL, Dismissed: &d,
		Join: rejoinCommand(id)}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"removed from the hub by kari at 2026-11-22T05:00:00Z (Node pi-1 was deleted)",
		"flotilla-device join https://gateway:8443 --token", "flotilla-hub token create --site oslo"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("the status does not say %q:\n%s", part, &b)
		}
	}
}

// When an enrolment ends, the device removes the data of its pods except persistent volumes.
func TestLeavingAFleetKeepsPersistentVolumes(t *testing.T) {
	dir, id := joined(t)
	for _, name := range []string{"persistent/data-uid/f", "pods/pod-uid/cache/f", "desired.state"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := prepared{stateDir: dir, identity: &id}
	if err := p.finishLeaving(t.Context(), "none", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if d := readDismissed(dir, id); d == nil || !d.Done {
		t.Fatalf("the dismissal is %+v, want Done", d)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "persistent/data-uid/f")); err != nil || string(b) != "kept" {
		t.Errorf("the persistent volume contains %q: %v", b, err)
	}
	for _, name := range []string{"pods", "desired.state"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is not removed", name)
		}
	}
}
