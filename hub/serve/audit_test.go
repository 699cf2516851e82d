package serve

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/enrolment"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// after calls a function once the response has n bytes.
type after struct {
	*httptest.ResponseRecorder
	bytes int
	do    func()
}

func (a *after) SetWriteDeadline(time.Time) error { return nil }

func (a *after) Write(p []byte) (int, error) {
	n, err := a.ResponseRecorder.Write(p)
	if a.do != nil && a.Body.Len() >= a.bytes {
		a.do()
		a.do = nil
	}
	return n, err
}

// audited returns the records since the last call, oldest first, as verb, resource, name, user and
// code.
func audited(t *testing.T, s *store.Store, since *int64) (lines []string) {
	t.Helper()
	all, err := s.Audits(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	newest := *since
	for _, a := range slices.Backward(all) {
		if a.ID > *since {
			lines = append(lines, fmt.Sprintf("%s %s %s by %s: %d %s", a.Verb, a.Resource, a.Name, a.Who, a.Code, a.Message))
		}
		newest = max(newest, a.ID)
	}
	*since = newest
	return lines
}

func TestOnlyAdministratorsExportTheAuditAndThatIsAudited(t *testing.T) {
	hub, people := wholeHub(t)
	var last int64
	get := func(who, host, path string, w http.ResponseWriter) (aborted bool) {
		r := httptest.NewRequest(http.MethodGet, path, nil).WithContext(t.Context())
		r.Host, r.TLS = host, &tls.ConnectionState{}
		people[who](r)
		defer func() {
			if p := recover(); p != nil {
				if aborted = true; p != http.ErrAbortHandler {
					panic(p)
				}
			}
		}()
		hub.Handler().ServeHTTP(w, r)
		return false
	}
	const own = "127.0.0.1:8443"
	audited(t, hub.Store, &last)

	w := &after{ResponseRecorder: httptest.NewRecorder()}
	if aborted := get("admin", own, exportPath, w); aborted || w.Code != 200 ||
		w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("%d %v, aborted %t; want the whole export", w.Code, w.Header(), aborted)
	}
	if r, err := store.VerifyAuditExport(bytes.NewReader(w.Body.Bytes())); err != nil || r.Breaks != 0 ||
		r.Records != 3 || r.To.Name != "export" {
		t.Errorf("the export is not valid (%v) or not of three records: %+v", err, r)
	}
	if got := audited(t, hub.Store, &last); len(got) != 1 || got[0] != "get audit export by admin-1: 200 " {
		t.Errorf("the records are %q", got)
	}
	for who, want := range map[string]struct {
		code int
		kept string
	}{"viewer": {403, "list audit  by viewer-1: 403"}, "operator": {403, "list audit  by operator-1: 403"},
		"stranger": {401, "list audit  by : 401"}} {
		w := httptest.NewRecorder()
		get(who, own, exportPath, w)
		if got := audited(t, hub.Store, &last); w.Code != want.code || strings.Contains(w.Body.String(), `"hash"`) ||
			len(got) != 1 || !strings.HasPrefix(got[0], want.kept) {
			t.Errorf("%s: %d, the records are %q; want %d, %q", who, w.Code, got, want.code, want.kept)
		}
	}
	for _, since := range []string{"yesterday", "-1h", "2026-13-01"} {
		w := httptest.NewRecorder()
		if get("admin", own, exportPath+"?since="+since, w); w.Code != http.StatusBadRequest {
			t.Errorf("since %s: %d %s; want 400", since, w.Code, w.Body)
		}
	}
	w = &after{ResponseRecorder: httptest.NewRecorder()}
	if get("admin", own, exportPath+"?since=2100-01-01", w); w.Code != 200 || w.Body.Len() != 0 {
		t.Errorf("since a future time: %d %s; want 200 without a record", w.Code, w.Body)
	}
	if w := httptest.NewRecorder(); get("admin", "evil.example", exportPath, w) ||
		w.Code != http.StatusMisdirectedRequest {
		t.Errorf("a request for another host name: %d, want 421", w.Code)
	}

	// The export ends when the reader's right ends, and the client notices that it is incomplete.
	for i := range 2000 {
		hub.Guard.Note(store.Audit{Who: "kari", Verb: "patch", Resource: "nodes", Name: fmt.Sprint(i), Code: 200})
	}
	w = &after{ResponseRecorder: httptest.NewRecorder(), bytes: 50_000, do: func() {
		if err := hub.Guard.DeleteUser(t.Context(), "admin-1"); err != nil {
			t.Error(err)
		}
	}}
	aborted := get("admin", own, exportPath, w)
	if n := bytes.Count(w.Body.Bytes(), []byte("\n")); !aborted || n > 1500 {
		t.Errorf("%d records are sent after the right has ended; aborted %t", n, aborted)
	}
}

// Orders of commands are recorded, also failed ones. Orders that only read are not.
func TestOrdersOfCommandsAreAudited(t *testing.T) {
	hub, _ := wholeHub(t)
	var last int64
	audited(t, hub.Store, &last)
	o := orders{hub.Loop, hub.Store, hub.Guard, hub.renewals, nil, nil, nil}
	for _, tt := range []struct {
		order string
		fails bool
		want  string // "": no record
	}{
		{"resume", false, "resume nodes  by root: 200 0 devices"},
		{"ca status", false, ""},
		{"ca rotate-intermediate", false, "rotate authority intermediate by root: 200 "},
		{"ca revoke", true, "revoke authority  by root: 500 1 devices have not renewed"}, // pi-1 has a certificate of the former intermediate
		{"ca rotate-root", false, "rotate authority root by root: 200 "},
		{"ca rotate-root", true, "rotate authority root by root: 500 "},
		{"ca revoke-force", false, "revoke authority force by root: 200 "},
		{"nonsense", true, ""},
	} {
		_, err := o.handle(t.Context(), "root", tt.order)
		got := audited(t, hub.Store, &last)
		if (err != nil) != tt.fails || (tt.want == "") != (len(got) == 0) || len(got) > 1 || len(got) == 1 &&
			!strings.HasPrefix(got[0], tt.want) {
			t.Errorf("%s: %v, the records are %q", tt.order, err, got)
		}
	}
}

// A device can send only its own messages, and its key is valid until its enrolment ends.
func TestALinkBelongsToOneKeyAndOneMachine(t *testing.T) {
	hub, _ := wholeHub(t)
	ctx := t.Context()
	d := &devices{Devices: hub.Loop, ask: hub.Ask, log: slog.New(slog.DiscardHandler)}
	rec := hub.Loop.Snapshot().Record("pi-1")
	peer := broker.Peer{Node: "pi-1", Key: rec.Key, Machine: rec.MachineID, Boot: "b"}
	report := func(boot, machine string) wire.Status { return wire.Status{Boot: boot, Seq: 1, MachineID: machine} }
	if err := d.Status(ctx, peer, report("b", "another")); err != nil || hub.Loop.Snapshot().Node("pi-1") != nil {
		t.Errorf("a status of another machine is accepted: %v", err)
	}
	if err := d.Status(ctx, peer, report("b", rec.MachineID)); err != nil || hub.Loop.Snapshot().Node("pi-1") == nil {
		t.Fatalf("a status of its own machine is refused: %v", err)
	}

	e := enrolment.Enrolments{Loop: hub.Loop}
	en, ok := e.Enrolment("pi-1")
	if !ok || en.Key != rec.Key {
		t.Fatalf("the enrolment is %+v, want the record's key", en)
	}
	if _, ok := e.Enrolment("nobody"); ok {
		t.Error("an unknown node is enrolled")
	}
	later := metav1.NewTime(time.Now().Add(100 * 24 * time.Hour))
	if err := e.Renewed(ctx, "pi-1", "another", later.Time); err == nil {
		t.Error("another key counts as enrolled")
	}
	if err := e.Renewed(ctx, "pi-1", rec.Key, later.Time); err != nil {
		t.Error(err)
	}
	next := en
	next.Key, next.MachineID, next.Token = "k2", "m2", "other"
	if err := e.Enrol(ctx, next); err != nil {
		t.Fatal(err)
	}
	now := hub.Loop.Snapshot().Record("pi-1")
	if now.Key != "k2" || now.MachineID != "m2" || now.Boot != "" || !slices.Contains(now.PastBoots, "b") {
		t.Errorf("after another device has joined the record is %+v", now)
	}
	var dismissal *broker.Dismissal
	err := d.Connect(peer)
	if f, ok := err.(*broker.Dismissal); !ok {
		t.Errorf("the former device gets %v, want its dismissal", err)
	} else {
		dismissal = f
	}
	var notice struct{ Dismissed *wire.Dismissed }
	if dismissal != nil && (json.Unmarshal(dismissal.Payload, &notice) != nil || notice.Dismissed == nil ||
		notice.Dismissed.By != "join token other") {
		t.Errorf("the dismissal is %s", dismissal.Payload)
	}
	for name, p := range map[string]broker.Peer{
		"the development listener": {Node: "pi-1", Machine: "m2", Boot: "c", Dev: true}, "a key that never was": {Node: "pi-1", Key: "k9", Boot: "c"},
	} {
		if err := d.Connect(p); err == nil || d.Speaks(p) {
			t.Errorf("%s is accepted: %v", name, err)
		} else if _, ok := err.(*broker.Dismissal); ok {
			t.Errorf("%s gets another device's dismissal", name)
		}
	}
	if err := e.Enrol(ctx, en); err == nil || hub.Loop.Snapshot().Record("pi-1").Key != "k2" {
		t.Errorf("the former key is enrolled again: %v", err)
	}
	if err := d.Status(ctx, peer, report("c", rec.MachineID)); err != nil ||
		hub.Loop.Snapshot().Record("pi-1").Boot != "" {
		t.Errorf("a message of the former device must be ignored and acknowledged: %v", err)
	}

	// Deleting a Node ends its enrolment.
	if _, err := hub.Loop.Do(ctx, func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Node("pi-1"), "")}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if d.Speaks(broker.Peer{Node: "pi-1", Key: "k2"}) || hub.Loop.Dismissed("k2") == nil {
		t.Error("the key of a deleted Node is accepted")
	}
	if err := e.Renewed(ctx, "pi-1", "k2", later.Time); err == nil {
		t.Error("the certificate of a deleted Node is renewed")
	}
}

// A watch ends when its user's right ends, through every layer of the hub.
func TestAWatchEndsWithItsUsersRight(t *testing.T) {
	hub, people := wholeHub(t)
	r := httptest.NewRequest(http.MethodGet, "/api/v1/nodes?watch=true", nil).WithContext(t.Context())
	r.Host, r.TLS = "127.0.0.1:8443", &tls.ConnectionState{}
	people["operator"](r)
	began, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		defer func() { _ = recover() }() // the client has disconnected
		hub.Handler().ServeHTTP(&begun{ResponseRecorder: httptest.NewRecorder(), began: began}, r)
	}()
	select {
	case <-began:
	case <-time.After(2 * time.Minute):
		t.Fatal("the watch does not begin")
	}
	if err := hub.Guard.DeleteUser(t.Context(), "operator-1"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-over:
	case <-time.After(2 * time.Minute):
		t.Error("the watch does not end")
	}
}

// begun signals the beginning of a response.
type begun struct {
	*httptest.ResponseRecorder
	began chan struct{}
	once  sync.Once
}

func (b *begun) Flush() { b.once.Do(func() { close(b.began) }) }
