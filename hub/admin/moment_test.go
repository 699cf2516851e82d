package admin

import (
	"html/template"
	"strings"
	"testing"
	"time"
)

func TestAMomentInATemplate(t *testing.T) {
	now := time.Now()
	for v, want := range map[any]string{
		at(now.Add(-time.Hour), now): ">60m<", momentOf(now.Add(-time.Hour), now): ">60m<", (*moment)(nil): "–", moment{}: "–",
	} {
		if got := string(timeFuncs(true)["ago"].(func(any) template.HTML)(v)); !strings.Contains(got, want) {
			t.Errorf("%v is shown as %s", v, got)
		}
	}
}
