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

// answers are what a hub says, one after the other; the last one for ever.
type answers []*http.Response

func (a *answers) RoundTrip(*http.Request) (*http.Response, error) {
	now := (*a)[0]
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	return now, nil
}

func answerOf(code int, after string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {after}}, Body: io.NopCloser(strings.NewReader(`{"error":"not now"}`))}
}

func TestADeviceComesAgainWhenTheHubSays(t *testing.T) {
	for _, tt := range []struct {
		name string
		hub  answers
		took time.Duration
		code int
	}{
		{"a crowd is waited for", answers{answerOf(429, "7"), answerOf(503, "9"), answerOf(409, "")}, 16 * time.Second, 409},
		{"a no is one", answers{answerOf(403, "7")}, 0, 403},
		{"a hub that does not say when is not asked again", answers{answerOf(503, "")}, 0, 503},
		{"a crowd without an end is given up on", answers{answerOf(429, "60")}, 5 * time.Minute, 429},
		{"nonsense is no time", answers{answerOf(429, "-5")}, 0, 429},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, _, err := askAgain(t.Context(), &http.Client{Transport: &tt.hub}, []*url.URL{{Scheme: "https", Host: "hub"}}, wire.JoinRequest{}, nil)
				no, _ := err.(*refusal)
				if took := time.Since(began); no == nil || no.code != tt.code || took != tt.took {
					t.Errorf("%v after %s, want %d after %s", err, took, tt.code, tt.took)
				}
			})
		})
	}
}
