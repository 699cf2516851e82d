package admission

import (
	"strings"
	"testing"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestADeviceReportIsASmallJSONObject(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1}`: "", ` {} `: "", ``: "hardware: Invalid value: it is not a JSON object", `[]`: "hardware: Invalid value: it is not a JSON object",
		`{"a":`: "hardware: Invalid value: it is not a JSON object", `{"a":"` + strings.Repeat("x", 32<<10) + `"}`: "hardware: Too long",
	} {
		r := sample(t, state.DeviceReports).(*fleet.DeviceReport)
		r.Hardware.Raw = []byte(text)
		_, errs := Admit(r, nil, normal)
		expect(t, errs, want)
	}
}
