package table

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// FuzzCells makes tables of objects with any content: each row has all cells, and no object breaks
// the list.
func FuzzCells(f *testing.F) {
	for i, k := range state.Kinds() {
		for _, o := range samples(k) {
			if text, err := json.Marshal(o); err == nil {
				f.Add(i, text)
			}
		}
	}
	f.Fuzz(func(t *testing.T, i int, text []byte) {
		k := state.Kinds()[uint(i)%uint(len(state.Kinds()))]
		o, err := state.New(k)
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(text, o) != nil {
			return
		}
		table := For(k, []state.Object{o}, Options{Include: metav1.IncludeMetadata, Now: now})
		if len(table.Rows) != 1 || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
			t.Errorf("%s: %d rows, cells %v for %d columns", k, len(table.Rows), table.Rows[0].Cells,
				len(table.ColumnDefinitions))
		}
		if _, err := json.Marshal(table); err != nil {
			t.Errorf("%s: the table cannot be sent: %v", k, err)
		}
	})
}
