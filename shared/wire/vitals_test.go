package wire

import "testing"

func TestImpossibleVitalsAreDropped(t *testing.T) {
	v := read(t, ParseStatus, Status{Boot: boot,
		Vitals: &Vitals{CPU: ptr(1.5), Memory: ptr(-.1), Disk: ptr(1.), Temperature: ptr(1e9), Supply: ptr(-5.),
			RTT: ptr(3601.)}}).Vitals
	if v == nil || v.CPU != nil || v.Memory != nil || v.Temperature != nil || v.Supply != nil || v.RTT != nil ||
		v.Disk == nil || *v.Disk != 1 {
		t.Errorf("the vitals are %+v, want only disk, which is 1", v)
	}
	if v := read(t, ParseStatus, Status{Boot: boot}).Vitals; v != nil {
		t.Errorf("an agent without vitals has %+v", v)
	}
	v = read(t, ParseStatus, Status{Boot: boot, Vitals: &Vitals{CPU: ptr(0.), Temperature: ptr(0.)}}).Vitals
	if v.CPU == nil || v.Temperature == nil || v.Supply != nil {
		t.Errorf("zero and absent values become %+v", v)
	}
}
