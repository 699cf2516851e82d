package serve

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// The alert FlotillaBackupOld uses the time of the newest backup. If the metric were missing, there
// would be no alert.
func TestTheBackupMetricWithoutABackup(t *testing.T) {
	hub, _ := wholeHub(t)
	newest := func() string {
		w := httptest.NewRecorder()
		hub.metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return regexp.MustCompile(`(?m)^flotilla_backup_timestamp_seconds .*$`).FindString(w.Body.String())
	}
	if got := newest(); got != "flotilla_backup_timestamp_seconds 0" {
		t.Errorf("the metric is %q", got)
	}
	if _, err := hub.Store.BackUpNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := newest(); got == "" || strings.HasSuffix(got, " 0") {
		t.Errorf("with a backup the metric is %q", got)
	}
}
