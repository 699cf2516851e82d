package diff

import (
	"slices"
	"strings"
	"testing"
)

func TestDiffIsTheShortestWay(t *testing.T) {
	for _, tt := range []struct{ name, a, b, want string }{
		{"equal texts", "a\nb\n", "a\nb\n", ""},
		{"a changed line", "a\nb\nc\n", "a\nx\nc\n", "@@ -1,3 +1,3 @@| a|-b|+x| c"},
		{"a new line at the end", "a\n", "a\nb\n", "@@ -1,1 +1,2 @@| a|+b"},
		{"the old text is empty", "", "a\nb\n", "@@ -1,0 +1,2 @@|+a|+b"},
		{"the new text is empty", "a\n", "", "@@ -1,1 +1,0 @@|-a"},
		{"two changes far apart", "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "x\n2\n3\n4\n5\n6\n7\n8\ny\n",
			"@@ -1,4 +1,4 @@|-1|+x| 2| 3| 4@@ -6,4 +6,4 @@| 6| 7| 8|-9|+y"},
		{"a moved line", "a\nb\nc\nd\n", "b\nc\nd\na\n", "@@ -1,4 +1,4 @@|-a| b| c| d|+a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got strings.Builder
			for _, h := range Of(tt.a, tt.b) {
				got.WriteString(h.Head)
				for _, l := range h.Lines {
					got.WriteString("|" + l.Sign + l.Text)
				}
			}
			if got.String() != tt.want {
				t.Errorf("%s, want %s", got.String(), tt.want)
			}
		})
	}
}

// FuzzDiff checks that removed and equal lines are the old text, and added and equal lines the new
// one.
func FuzzDiff(f *testing.F) {
	f.Add("a\nb\nc", "a\nc\nd")
	f.Add("a\nb\nc\na\nb\nb\na", "c\nb\na\nb\na\nc")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, a, b string) {
		var old, new []string
		changed := 0
		for _, l := range edits(Lines(a), Lines(b)) {
			if l.Sign != "+" {
				old = append(old, l.Text)
			}
			if l.Sign != "-" {
				new = append(new, l.Text)
			}
			if l.Sign != " " {
				changed++
			}
		}
		if !slices.Equal(old, Lines(a)) || !slices.Equal(new, Lines(b)) {
			t.Fatalf("%q to %q gave %q to %q", a, b, old, new)
		}
		if (changed == 0) != slices.Equal(Lines(a), Lines(b)) {
			t.Fatalf("%d changes from %q to %q", changed, a, b)
		}
	})
}
