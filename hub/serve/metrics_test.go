package serve

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// The alert FlotillaBackupOld uses the time of the newest backup, and a missing metric would raise
// no alert.
func TestTheBackupMetricWithoutABackup(t *testing.T) {
	hub, _ := wholeHub(t)
	newest := func() string {
		w := httptest.NewRecorder()
		hub.metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return regexp.MustCompile(`(?m)^flotilla_backup_timestamp_seconds .*$`).FindString(w.Body.String())
	}
	if got := newest(); got != "flotilla_backup_timestamp_seconds 0" {
		t.Errorf("it says %q", got)
	}
	if _, err := hub.Store.BackUpNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := newest(); got == "" || strings.HasSuffix(got, " 0") {
		t.Errorf("with a backup it says %q", got)
	}
}
