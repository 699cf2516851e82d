package nodes

import (
	"fmt"
	"strings"
	"testing"
)

func TestAHardwareReportOfAnyShapeIsShown(t *testing.T) {
	for _, c := range []struct{ name, report, want string }{
		{"amounts are readable", `{"capacity":{"memory":4294967296}}`, "[{Capacity [{Memory 4 GiB}]}]"},
		{"elements of a list have their own name", `{"temperatures":[{"name":"cpu","celsius":51.5}]}`,
			"[{Temperatures [{CPU Celsius 51.5 °C}]}]"},
		{"a value outside of any part is under Other", `{"memoryLimits":true}`, "[{Other [{Memory Limits yes}]}]"},
		{"an array is not a report", `[1,2]`, "[]"},
		{"there is no report", ``, "[]"},
	} {
		if got := strings.ReplaceAll(fmt.Sprint(hardware([]byte(c.report))), " }", "}"); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
