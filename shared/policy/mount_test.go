package policy

import "testing"

func TestMountPath(t *testing.T) {
	for name, ok := range map[string]bool{
		"/data": true, "/a b/ç": true, "/data/": true, "/a/../b": true, "/procs": true, "/sys/class/gpio": true, "/etc/app.conf": true, "/x=y;z": true,
		"": false, "data": false, "./data": false, "..": false, "/": false, "//": false, "/.": false, "/a/..": false, "/../..": false,
		"/proc": false, "/proc/": false, "/proc/self/attr": false, "/x/../proc/sys": false, "//proc": false,
		"/x,source=/etc": false, "/x,bind-propagation=rshared": false, "/x\"y": false, "/x\ny": false, "/x\r": false, "/x\x00": false, "/x\u0085y": false, "/a:/b": false,
	} {
		if why := MountPath(name); ok != (why == "") {
			t.Errorf("%q: the reason is %q, want it accepted: %t", name, why, ok)
		}
	}
}
