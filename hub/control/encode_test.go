package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// An unwritable object cannot be encoded.
type unwritable struct {
	*corev1.Namespace
	panics bool
}

func (u unwritable) MarshalJSON() ([]byte, error) {
	if u.panics {
		panic("no words")
	}
	return nil, errors.New("no words")
}

// Rows are encoded in parallel. An error names the object, and a panic does not end the hub.
func TestRowsAreEncodedInParts(t *testing.T) {
	for _, n := range []int{0, 1, shardSize, shardSize + 1, 3*shardSize + 7} {
		rows := make([]Row, n)
		for i := range rows {
			ns := &corev1.Namespace{}
			ns.Name = fmt.Sprintf("ns-%05d", i)
			if rows[i].Key = state.KeyOf(ns); i%7 != 3 { // every seventh row is a deletion
				rows[i].State = ns
			}
		}
		if err := encode(rows); err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			if r.State == nil {
				if r.Object != nil {
					t.Errorf("%d rows: the deleted %s is %s", n, r.Key, r.Object)
				}
				continue
			}
			if want, _ := json.Marshal(r.State); string(r.Object) != string(want) {
				t.Errorf("%d rows: row %d is %s, want %s", n, i, r.Object, want)
			}
		}
		for _, panics := range []bool{false, true} {
			if n == 0 {
				break
			}
			for _, at := range []int{0, n / 2, n - 1} {
				bad := append([]Row{}, rows...)
				bad[at].State = unwritable{&corev1.Namespace{}, panics}
				err := encode(bad)
				if err == nil || !strings.Contains(err.Error(), "no words") ||
					!panics && !strings.Contains(err.Error(), bad[at].Key.String()) {
					t.Errorf("row %d of %d cannot be encoded (by a panic: %v): %v", at, n, panics, err)
				}
			}
		}
	}
}
