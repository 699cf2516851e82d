package serve

import (
	"encoding/json"
	"strings"
	"testing"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// TestARowOfTooManyElements: a row, as of somebody's backup, is counted before it is decoded.
func TestARowOfTooManyElements(t *testing.T) {
	r := store.Row{Kind: string(state.Pods), Namespace: "default", Name: "a",
		Object: json.RawMessage(`{"metadata":{"name":"a","namespace":"default"},"spec":{"containers":[` + strings.Repeat("{},", 1<<20) + "{}]}}")}
	if _, _, err := new(reader).object(r); err == nil || !strings.Contains(err.Error(), "objects and lists") || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("%.200v", err)
	}
}
