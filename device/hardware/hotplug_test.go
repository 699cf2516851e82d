package hardware

import (
	"context"
	"strings"
	"testing"
)

func TestWhichKernelEventsConcernDevices(t *testing.T) {
	for _, c := range []struct {
		message string
		want    bool
	}{
		{"add@/devices/x|ACTION=add|DEVPATH=/devices/x|SUBSYSTEM=tty|SEQNUM=1|", true},
		{"remove@/devices/x|ACTION=remove|DEVPATH=/devices/x|SUBSYSTEM=usb|", true},
		{"libudev|....|ACTION=add|DEVPATH=/devices/x|SUBSYSTEM=tty|", true},
		{"add@/devices/pci/net/can0|ACTION=add|DEVPATH=/devices/pci/net/can0|SUBSYSTEM=net|", true},
		{"add@/devices/virtual/net/veth1|ACTION=add|DEVPATH=/devices/virtual/net/veth1|SUBSYSTEM=net|", false},
		{"bind@/devices/x|ACTION=bind|DEVPATH=/devices/x|SUBSYSTEM=usb|", false},
		{"add@/devices/x|ACTION=add|DEVPATH=/devices/x|SUBSYSTEM=block|", false},
		{"", false},
	} {
		if got := concerns([]byte(strings.ReplaceAll(c.message, "|", "\x00"))); got != c.want {
			t.Errorf("event %s: concerns is %v, want %v", c.message, got, c.want)
		}
	}
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Watch(ctx, func() {}) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
