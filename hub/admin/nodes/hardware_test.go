package nodes

import (
	"fmt"
	"strings"
	"testing"
)

func TestAHardwareReportOfAnyShapeIsShown(t *testing.T) {
	for _, c := range []struct{ name, report, want string }{
		{"amounts are readable", `{"capacity":{"memory":4294967296}}`, "[{Capacity [{Memory 4 GiB}]}]"},
		{"things of a list stand by their name", `{"temperatures":[{"name":"cpu","celsius":51.5}]}`,
			"[{Temperatures [{CPU Celsius 51.5 °C}]}]"},
		{"what is not in a part stands under Other", `{"memoryLimits":true}`, "[{Other [{Memory Limits yes}]}]"},
		{"what is no report is nothing", `[1,2]`, "[]"},
		{"nothing is nothing", ``, "[]"},
	} {
		if got := strings.ReplaceAll(fmt.Sprint(hardware([]byte(c.report))), " }", "}"); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
