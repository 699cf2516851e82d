package sim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/join"
	"flotilla.dev/hub/access"
	"flotilla.dev/hub/state"
)

// approvalToken creates a token for oslo whose devices need approval.
func (w *world) approvalToken(n access.NewJoinToken) (id, text string) {
	w.t.Helper()
	n.Site, n.Uses, n.By, n.Approval = "oslo", max(n.Uses, 1), "someone", true
	if n.Life == 0 {
		n.Life = 30 * 24 * time.Hour
	}
	k, err := w.hub.Guard.CreateJoinToken(context.Background(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return k.ID, k.Text()
}

// A joining is a join of a device that runs, with its result.
type joining struct {
	waits  chan string
	over   chan error
	cancel context.CancelFunc
}

// joins starts to join like the command, until it is interrupted.
func (d *simDevice) joins(token string) *joining {
	ctx, cancel := context.WithCancel(context.Background())
	j := &joining{make(chan string, 100), make(chan error, 1), cancel}
	o := d.options()
	o.Token, o.Serial, o.Waits = token, "serial of "+d.key, func(request string) { j.waits <- request }
	go func() {
		_, err := join.Join(ctx, o)
		j.over <- err
	}()
	return j
}

func (j *joining) came() error {
	select {
	case err := <-j.over:
		return err
	case <-time.After(3 * time.Minute):
		j.cancel()
		return errors.New("the device still waits after 3 min")
	}
}

// requests returns the requests by name with their decisions.
func (w *world) requests() map[string]state.Decision {
	all := map[string]state.Decision{}
	for r := range state.Each[*certv1.CertificateSigningRequest](w.snapshot(), state.JoinRequests, "") {
		all[r.Name] = state.DecisionOn(r)
	}
	return all
}

func (w *world) decide(request string, t certv1.RequestConditionType) {
	w.t.Helper()
	w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		r := requestAt(s, request).DeepCopy()
		r.Status.Conditions = append(r.Status.Conditions,
			certv1.CertificateSigningRequestCondition{Type: t, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now)})
		return []state.Change{state.Put(r, "decide on "+request)}, nil
	})
}

func requestAt(s state.Snapshot, name string) *certv1.CertificateSigningRequest {
	r, _ := s.Get(state.Key{Kind: state.JoinRequests, Name: name}).(*certv1.CertificateSigningRequest)
	return r
}

// spare returns a device that does not belong to the fleet yet.
func (w *world) spare(key, name string) *simDevice {
	d := w.newClone(key, name, "oslo")
	w.alter(func() { w.devices = w.devices[:len(w.devices)-1] })
	return d
}

func (w *world) used(token string) int {
	w.t.Helper()
	t, err := w.hub.Guard.Store.JoinToken(context.Background(), token)
	if err != nil {
		w.t.Fatal(err)
	}
	return t.Used
}

func refusedWith(err error, part string) bool {
	return errors.Is(err, join.ErrRefused) && strings.Contains(err.Error(), part)
}

func TestFleetADeviceWaitsForApprovalThroughARestartOfTheHub(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.secured("pi-1")
		id, token := w.approvalToken(access.NewJoinToken{})
		d := w.newDevice("pi-2", "oslo")
		j := d.joins(token)
		name := <-j.waits
		w.restartHub(time.Minute)
		time.Sleep(time.Minute)
		if got := w.requests(); len(got) != 1 || got[name] != state.RequestPending || w.snapshot().Record("pi-2") != nil ||
			w.used(id) != 0 {
			t.Fatalf("after the restart: %v, %d uses", got, w.used(id))
		}
		// A user interrupts the command and repeats it. It continues the same request.
		j.cancel()
		if err := j.came(); !errors.Is(err, join.ErrWaits) {
			t.Fatal(err)
		}
		j = d.joins(token)
		if again := <-j.waits; again != name {
			t.Fatalf("the second request shows %s, the first %s", again, name)
		}
		r := requestAt(w.snapshot(), name)
		for key, want := range map[string]string{state.RequestNode: "pi-2", state.RequestSite: "oslo",
			state.RequestMachine: d.machine, state.RequestSerial: "serial of pi-2"} {
			if r.Annotations[key] != want {
				t.Errorf("%s is %q, want %q", key, r.Annotations[key], want)
			}
		}
		w.decide(name, certv1.CertificateApproved)
		if err := j.came(); err != nil {
			t.Fatal(err)
		}
		if got := w.requests(); got[name] != state.RequestIssued || w.used(id) != 1 {
			t.Errorf("%v, %d uses", got, w.used(id))
		}
		d.start()
		w.settleWithin(15*time.Second, "joining")
		// The response was lost, so the same key asks again. That needs neither another approval
		// nor another use of the token.
		o := d.options()
		have, err := join.Load(o.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		o.Token, o.Key = token, have.Key
		if _, err := join.Join(context.Background(), o); err != nil || w.used(id) != 1 {
			t.Errorf("second answer: %v, %d uses", err, w.used(id))
		}
		time.Sleep(state.RequestTold)
		if got := w.requests(); len(got) != 0 {
			t.Errorf("an hour later the requests are %v", got)
		}
	})
}

func TestFleetADeviceWithoutApprovalCannotJoin(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.secured()
		none := func(what string, node string) {
			t.Helper()
			if w.snapshot().Record(node) != nil || w.snapshot().Node(node) != nil {
				t.Errorf("%s: %s is enrolled", what, node)
			}
		}
		id, token := w.approvalToken(access.NewJoinToken{Uses: 9})

		d := w.spare("a", "denied")
		j := d.joins(token)
		w.decide(<-j.waits, certv1.CertificateDenied)
		if err := j.came(); !refusedWith(err, "was denied") {
			t.Errorf("denied: %v", err)
		}
		if err := d.join(token); !refusedWith(err, "was denied") {
			t.Errorf("asking again after a denial returns %v", err)
		}
		none("denied", "denied")

		d = w.spare("b", "deleted")
		j = d.joins(token)
		name := <-j.waits
		w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(requestAt(s, name), "delete "+name)}, nil
		})
		if err := j.came(); !refusedWith(err, "was deleted or not approved in time") || w.requests()[name] != "" {
			t.Errorf("deleted: %v, %v", err, w.requests())
		}

		// After a day without a decision the request ends. The device gets that answer and does not
		// ask again by itself.
		d = w.spare("c", "forgotten")
		j = d.joins(token)
		name = <-j.waits
		j.cancel() // a poll every few seconds is too slow to simulate for a day
		_ = j.came()
		time.Sleep(state.RequestWaits - time.Minute)
		j = d.joins(token)
		if again := <-j.waits; again != name {
			t.Errorf("the device waits as %s, and after a repetition as %s", name, again)
		}
		if w.requests()[name] != state.RequestPending {
			t.Errorf("a minute before the day ends: %v", w.requests())
		}
		if err := j.came(); !refusedWith(err, "was deleted or not approved in time") || len(w.requests()) != 0 {
			t.Errorf("forgotten: %v, %v", err, w.requests())
		}

		// An approved device that does not return within the hour has to ask again.
		d = w.spare("d", "late")
		j = d.joins(token)
		name = <-j.waits
		j.cancel()
		_ = j.came()
		w.decide(name, certv1.CertificateApproved)
		time.Sleep(state.RequestTold + time.Minute)
		j = d.joins(token)
		if again := <-j.waits; again != name || w.requests()[name] != state.RequestPending {
			t.Errorf("late: %v", w.requests())
		}
		none("late", "late")

		// A revoked token ends the request of a waiting device.
		if err := w.hub.Guard.RevokeJoinToken(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		if err := j.came(); !refusedWith(err, "revoked") || len(w.requests()) != 0 {
			t.Errorf("revoked: %v, %v", err, w.requests())
		}

		// The token is revoked after the approval, before the device returns.
		id, token = w.approvalToken(access.NewJoinToken{})
		j = d.joins(token)
		w.decide(<-j.waits, certv1.CertificateApproved)
		if err := w.hub.Guard.RevokeJoinToken(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		if err := j.came(); !refusedWith(err, "revoked") {
			t.Errorf("revoked after the approval: %v", err)
		}
		none("revoked", "late")
	})
}

func TestFleetApprovalDecidesBetweenTwoDevices(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.secured("pi-1")
		_, token := w.approvalToken(access.NewJoinToken{Uses: 2})
		// Two devices want to be one node, and both requests are approved.
		one, two := w.newClone("one", "kiosk", "oslo"), w.spare("two", "kiosk")
		first, second := one.joins(token), two.joins(token)
		a, b := <-first.waits, <-second.waits
		if a == b {
			t.Fatal("both keys share one request")
		}
		w.decide(a, certv1.CertificateApproved)
		if err := first.came(); err != nil {
			t.Fatal(err)
		}
		one.start()
		w.settleWithin(15*time.Second, "joining")
		w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) { // before the first device gets the answer
			r := requestAt(s, b)
			if r == nil {
				return nil, nil
			}
			r = r.DeepCopy()
			r.Status.Conditions = append(r.Status.Conditions,
				certv1.CertificateSigningRequestCondition{Type: certv1.CertificateApproved, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(now)})
			return []state.Change{state.Put(r, "")}, nil
		})
		if err := second.came(); !refusedWith(err, "belongs to the device with the machine ID") {
			t.Errorf("the second device gets %v", err)
		}
		if rec := w.snapshot().Record("kiosk"); rec.MachineID != one.machine || w.requests()[b] != "" {
			t.Errorf("kiosk is %s, requests %v", rec.MachineID, w.requests())
		}

		// Hardware is replaced with approval. Until then the old device stays the node.
		_, token = w.approvalToken(access.NewJoinToken{Node: "kiosk"})
		fresh := w.spare("fresh", "kiosk")
		j := fresh.joins(token)
		name := <-j.waits
		time.Sleep(time.Minute)
		if rec := w.snapshot().Record("kiosk"); rec.MachineID != one.machine || !w.hub.Broker.Online("kiosk") {
			t.Error("the old device lost the node without an approval")
		}
		w.decide(name, certv1.CertificateApproved)
		if err := j.came(); err != nil {
			t.Fatal(err)
		}
		if rec := w.snapshot().Record("kiosk"); rec.MachineID != fresh.machine {
			t.Errorf("kiosk is machine %s", rec.MachineID)
		}
		one.powerCut()
		w.alter(func() { w.devices[slices.Index(w.devices, one)] = fresh })
		fresh.start()
		w.until(time.Minute, "the new device is connected", func() bool { return w.hub.Broker.Online("kiosk") })
	})
}

func TestFleetAValidTokenCannotFloodTheList(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		w.secured()
		loop := w.hub.Guard.Fleet
		applicant := func(i int, token string, left int) access.Applicant {
			return access.Applicant{Node: fmt.Sprintf("n-%d", i), Key: fmt.Sprintf("%064d", i), Site: "oslo", Token: token,
				Source: "10.0.0.9",
				CSR:    emptyRequest(t), Left: left, Until: time.Now().AddDate(1, 0, 0), Begin: true}
		}
		ctx := context.Background()
		for i := range 6 {
			if _, err := loop.Await(ctx, applicant(i, "three", 3)); (err != nil) != (i >= 3) ||
				err != nil && !errors.Is(err, access.ErrRefused) {
				t.Errorf("device %d with a token for three: %v", i, err)
			}
		}
		// A key has one request, however often it tries.
		for i := range 20 {
			a := applicant(0, "three", 3)
			a.Node = fmt.Sprintf("other-%d", i)
			if _, err := loop.Await(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(w.requests()); n != 3 {
			t.Errorf("%d requests of three keys: %v", n, slices.Collect(maps.Keys(w.requests())))
		}
		for i := 3; i < state.MaxRequests; i++ {
			if _, err := loop.Await(ctx, applicant(i, "many", 10_000)); err != nil {
				t.Fatal(i, err)
			}
		}
		if _, err := loop.Await(ctx, applicant(state.MaxRequests, "many", 10_000)); !errors.Is(err, access.ErrBusy) ||
			len(w.requests()) != state.MaxRequests {
			t.Errorf("a request above the limit: %v, %d", err, len(w.requests()))
		}
		// Existing requests continue.
		if v, err := loop.Await(ctx, applicant(5, "many", 10_000)); err != nil || v.Waiting != state.MaxRequests {
			t.Errorf("%+v, %v", v, err)
		}
		time.Sleep(state.RequestWaits)
		synctest.Wait()
		if n := len(w.requests()); n != 0 {
			t.Errorf("a day later %d requests exist", n)
		}
	})
}

// emptyRequest is a certificate request without a name.
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
