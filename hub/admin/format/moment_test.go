package format

import (
	"html/template"
	"strings"
	"testing"
	"time"
)

func TestAMomentInATemplate(t *testing.T) {
	now := time.Now()
	for v, want := range map[any]string{
		Time(now.Add(-time.Hour), now): ">60m<", MomentOf(now.Add(-time.Hour), now): ">60m<", (*Moment)(nil): "–",
		Moment{}: "–",
	} {
		if got := string(TemplateFuncs(true)["ago"].(func(any) template.HTML)(v)); !strings.Contains(got, want) {
			t.Errorf("%v is shown as %s", v, got)
		}
	}
}
