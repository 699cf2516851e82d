package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/control"
)

func TestPatternsThatCostTooMuchAreRefused(t *testing.T) {
	for pattern, ok := range map[string]bool{
		"error|warn": true, `^\d{4}-\d\d-\d\dT.* level=(WARN|ERROR) .*node=pi-[0-9]{1,3}`: true, `(?i)connection (refused|reset)`: true,
		"(a?){1000}": false, "a{1000}": false, "(a{90}){90}": false, "((x*)*)*{99}": false, `[a-z]{50}[a-z]{50}[a-z]{50}[a-z]{50}[a-z]{50}[a-z]{50}[a-z]{50}`: false,
		"(": false, `(a)\1`: false,
	} {
		v := url.Values{"query": {"kubelet"}, "pattern": {pattern}}
		if _, errs := logQueryOf(v); (len(errs) == 0) != ok {
			t.Errorf("pattern %.40s: %v, want accepted: %t", pattern, errs, ok)
		}
	}
}

func TestPatternMatchingUsesAFifthOfAProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		pause(t.Context(), time.Second)
		if took := time.Since(began); took != filterRest*time.Second {
			t.Errorf("after a second of matching the filter rests %s, want %d s", took, filterRest)
		}
	})
	s, users := newLogFilters(), 0
	user := func() string { users++; return fmt.Sprint("user-", users) }
	var leave []func()
	for range nodeFilters {
		l, err := s.enter(user(), "pi-1")
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	if _, err := s.enter(user(), "pi-1"); err == nil {
		t.Error("a third query of one node is accepted")
	}
	for i := range maxFilters - nodeFilters {
		if _, err := s.enter(user(), fmt.Sprint("other-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.enter(user(), "pi-9"); err == nil {
		t.Error("a query over the hub's limit is accepted")
	}
	leave[0]()
	if _, err := s.enter(user(), "pi-1"); err != nil {
		t.Error("a query after another has ended:", err)
	}
}

func TestOneUserCannotTakeAllLogQueries(t *testing.T) {
	s := newLogFilters()
	for i := range userFilters {
		if _, err := s.enter("anna", fmt.Sprint("pi-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.enter("anna", "pi-9"); err == nil {
		t.Error("a user must not exceed the limit of queries")
	}
	if _, err := s.enter("olav", "pi-9"); err != nil {
		t.Error(err)
	}
	if _, err := s.enter("olav", "pi-9"); err != nil {
		t.Error(err)
	}
	for range 5 { // a refusal because of the node's limit does not count for the user
		if _, err := s.enter("olav", "pi-9"); err == nil {
			t.Error("a third query of one node is accepted")
		}
	}
	if _, err := s.enter("olav", "pi-8"); err != nil {
		t.Error(err)
	}
}

func TestALogQueryEnds(t *testing.T) {
	f := seeded()
	gone := make(chan error, 1)
	f.nodeLogs = func(_ string, _ corev1.PodLogOptions, w io.Writer) error { // the device sends without end
		for {
			if _, err := io.WriteString(w, strings.Repeat("2026-11-20T12:00:00Z aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
				1000)); err != nil {
				gone <- err
				return err
			}
			time.Sleep(time.Second)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s := newServer(f)
		w := request{method: "GET", path: "/api/v1/nodes/pi-1/proxy/logs/?query=kubelet&pattern=b"}.do(s)
		if err := <-gone; err == nil || w.Code == 0 {
			t.Error("the query must end after its time limit")
		}
	})
}

// unread is an answer whose client does not read before it is told to.
type unread struct {
	*httptest.ResponseRecorder
	begun chan struct{}
	may   chan struct{}
	once  sync.Once
}

func (u *unread) Write(b []byte) (int, error) {
	u.once.Do(func() { u.begun <- struct{}{} })
	<-u.may
	return len(b), nil
}

// bulky is a fleet whose list of pods has about 20 MB.
func bulky() *fakeFleet {
	f := seeded()
	for i := range 40 {
		p := fakePod(fmt.Sprint("big-", i), "")
		p.Annotations = map[string]string{"example.com/x": strings.Repeat("x", 512<<10)}
		f.put(p)
	}
	return f
}

func TestUnreadListsShareAnEncoding(t *testing.T) {
	f := bulky()
	synctest.Test(t, func(t *testing.T) { // time advances only when all requests are blocked
		s := newServer(f)
		may, begun := make(chan struct{}), make(chan struct{}, 60)
		var wg sync.WaitGroup
		list := func(role string) *unread {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
			r.Header.Set("Authorization", "Bearer "+role)
			u := &unread{ResponseRecorder: httptest.NewRecorder(), begun: begun, may: may}
			wg.Go(func() { s.ServeHTTP(u, r) })
			<-begun
			return u
		}
		s.answers.encoding <- struct{}{} // one of the two encoders is in use
		for range 60 {
			if u := list("viewer"); u.Code != http.StatusOK {
				t.Fatal(u.Code)
			}
		}
		if n := s.answers.encodings; n != 1 {
			t.Errorf("60 equal lists were encoded %d times, want once", n)
		}
		if s.answers.all > userUnread+24<<20 {
			t.Errorf("%d bytes are counted for a client that reads nothing", s.answers.all)
		}
		// Another revision needs another encoding. It exceeds this user's limit, but another user
		// gets it.
		f.touch(fakeNode("pi-1", ""), "a", "b")
		if u := list("viewer"); u.Code != http.StatusTooManyRequests || u.Header().Get("Retry-After") == "" {
			t.Errorf("the second answer of 20 MB for one user: %d %v, want 429 with Retry-After", u.Code, u.Header())
		}
		if u := list("operator"); u.Code != http.StatusOK {
			t.Errorf("list of another user: %d", u.Code)
		}
		close(may)
		wg.Wait()
		if s.answers.all != 0 || len(s.answers.by) != 0 || len(s.answers.made) != 0 {
			t.Errorf("read answers are still counted: %+v", s.answers)
		}
	})
}

func TestASingleAnswerMayExceedTheLimit(t *testing.T) {
	a := newAnswers()
	release, err := a.hold("anna", 2*maxUnread)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.hold("olav", smallAnswer+1); err == nil {
		t.Error("more than the limit of all users")
	}
	if _, err := a.hold("olav", smallAnswer); err != nil {
		t.Error("a small answer must not be refused:", err)
	}
	release()
	if _, err := a.hold("olav", maxUnread); err != nil {
		t.Error(err)
	}
}

func TestAFailedListIsMadeAgain(t *testing.T) {
	a := newAnswers()
	if _, _, err := a.share("anna", "k", func() ([]byte, error) { return nil, errors.New("no") }); err == nil {
		t.Error("a failure is not returned")
	}
	body, release, err := a.share("anna", "k", func() ([]byte, error) { return []byte("yes"), nil })
	if err != nil || string(body) != "yes" {
		t.Errorf("the second try returned %s, want yes: %v", body, err)
	}
	release()
}

func TestUnreadAnswersCountForTheirUserOnly(t *testing.T) {
	a, large := newAnswers(), make([]byte, userUnread*3/4)
	list := func(user, key string) (func(), error) {
		body, release, err := a.share(user, key, func() ([]byte, error) { return large, nil })
		if err == nil && len(body) != len(large) {
			t.Errorf("%s has %d bytes of %s", user, len(body), key)
		}
		return release, err
	}
	must := func(release func(), err error) func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	// The first request makes the encoding, and a second, slow reader shares it.
	anna := must(list("anna", "pods"))
	olav := must(list("olav", "pods"))
	again := must(list("olav", "pods"))
	if a.all != len(large) {
		t.Errorf("%d bytes are counted, want those of one encoding", a.all)
	}
	anna()
	other := must(list("anna", "nodes"))
	if _, err := list("olav", "nodes"); err == nil || !strings.Contains(err.Error(), "of user olav, or") {
		t.Errorf("second list for a user with an unread list: %v, want a refusal", err)
	}
	olav()
	if _, err := list("olav", "nodes"); err == nil {
		t.Error("the second list is not read")
	}
	again()
	// An encoding that exceeds the limit of the user who caused it is still sent to others that
	// wait for it.
	busy := must(list("kari", "events"))
	made, may := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := a.share("kari", "secrets", func() ([]byte, error) {
			close(made)
			<-may
			return large,
				nil
		}); err == nil || !strings.Contains(err.Error(), "of user kari, or") {
			t.Errorf("second list for kari: %v, want a refusal", err)
		}
	})
	<-made
	wg.Go(func() {
		release, err := list("olav", "secrets")
		if err != nil {
			t.Error("the limit of kari refuses olav:", err)
			return
		}
		release()
	})
	for waits := false; !waits; time.Sleep(time.Millisecond) { // waits for kari's encoding
		a.mu.Lock()
		waits = a.made["secrets"].refs == 2
		a.mu.Unlock()
	}
	close(may)
	wg.Wait()
	other()
	busy()
	if a.all != 0 || len(a.by) != 0 || len(a.made) != 0 {
		t.Errorf("read answers are still counted: %d bytes, %v, %d lists", a.all, a.by, len(a.made))
	}
}

// A write that may have been carried out has no Retry-After. A client that repeats it would get a
// conflict with its own success.
func TestAnUncertainWriteHasNoRetryAfter(t *testing.T) {
	fake := seeded()
	s := newServer(fake)
	fake.fail = context.DeadlineExceeded
	for _, r := range []request{
		{method: "POST", path: ns + "/configmaps", body: configMap},
		{method: "DELETE", path: ns + "/pods/kiosk-2"},
		{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: "application/merge-patch+json", body: `{"metadata":{"labels":{"a":"b"}}}`},
	} {
		w := r.do(s)
		if w.Code != http.StatusGatewayTimeout || w.Header().Get("Retry-After") != "" ||
			strings.Contains(w.Body.String(), "retryAfterSeconds") {
			t.Errorf("%s %s: %d, Retry-After %q: %s; want 504 without Retry-After", r.method, r.path, w.Code,
				w.Header().Get("Retry-After"), w.Body)
		}
	}
}

// A request that a stopping hub has not carried out gets Retry-After, so that the client sends it
// to the same or another hub.
func TestAStoppingHubAsksForARetry(t *testing.T) {
	fake := seeded()
	s := newServer(fake)
	fake.fail = control.ErrStopped
	put := request{method: "POST", path: ns + "/configmaps", body: configMap}
	again := func(when string, w *httptest.ResponseRecorder) {
		t.Helper()
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" ||
			!strings.Contains(w.Body.String(), "the hub is stopping") {
			t.Errorf("%s: code %d, Retry-After %q: %s; want 503, 1", when, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
	}
	again("the control loop has ended", put.do(s))
	s.Access = stopped{}
	again("authentication stopped with the hub", put.do(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		s.ServeHTTP(w, r.WithContext(ctx))
	})))
}

// stopped fails authentication, as a stopping hub does.
type stopped struct{ fakeAccess }

func (stopped) Authenticate(r *http.Request) (access.User, error) {
	return access.User{}, r.Context().Err()
}
