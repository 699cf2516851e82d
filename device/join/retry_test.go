package join

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// answers are a hub's responses in order. The last one is repeated.
type answers []*http.Response

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	now := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	return now, nil
}

func answerOf(code int, after string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {after}},
		Body: io.NopCloser(strings.NewReader(`{"error":"not now"}`))}
}

func TestARequestIsRepeatedWhenTheHubSays(t *testing.T) {
	for _, tt := range []struct {
		name string
		hub  answers
		took time.Duration
		code int
	}{
		{"a request to a busy hub is repeated", answers{answerOf(429, "7"), answerOf(503, "9"), answerOf(409, "")}, 16 * time.Second, 409},
		{"a refusal is final", answers{answerOf(403, "7")}, 0, 403},
		{"a request without Retry-After is not repeated", answers{answerOf(503, "")}, 0, 503},
		{"requests to a hub that stays busy end", answers{answerOf(429, "60")}, 5 * time.Minute, 429},
		{"an invalid Retry-After is ignored", answers{answerOf(429, "-5")}, 0, 429},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, _, err := askAgain(t.Context(), &http.Client{Transport: &tt.hub},
					[]*url.URL{{Scheme: "https", Host: "hub"}},
					wire.JoinRequest{}, nil)
				no, _ := err.(*refusal)
				if took := time.Since(began); no == nil || no.code != tt.code || took != tt.took {
					t.Errorf("got %v after %s, want %d after %s", err, took, tt.code, tt.took)
				}
			})
		})
	}
}

// A broken body is a response that was cut off.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (broken) Close() error             { return nil }

// A hub that stops, or whose leader stops, may cut off a response.
func TestARequestIsRepeatedAfterAnIncompleteResponse(t *testing.T) {
	cut := func(code int) *http.Response { return &http.Response{StatusCode: code, Body: broken{}} }
	waits := &http.Response{StatusCode: http.StatusAccepted,
		Body: io.NopCloser(strings.NewReader(`{"error":"wait","waiting":"csr-1"}`))}
	first, second := &url.URL{Scheme: "https", Host: "a"}, &url.URL{Scheme: "https", Host: "b"}
	for _, tt := range []struct {
		name string
		hub  answers
		hubs []*url.URL
		at   *url.URL
	}{
		{"a join that waits for approval continues", answers{waits, cut(202), cut(200), answerOf(409, "")}, []*url.URL{first}, first},
		{"the next hub gets the request", answers{cut(200), answerOf(409, "")}, []*url.URL{first, second}, second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, at, err := askAgain(t.Context(), &http.Client{Transport: &tt.hub}, tt.hubs, wire.JoinRequest{}, nil)
				if no, _ := err.(*refusal); no == nil || no.code != 409 || at != tt.at {
					t.Errorf("got %v from %s, want a refusal from %s", err, at, tt.at)
				}
			})
		})
	}
}
