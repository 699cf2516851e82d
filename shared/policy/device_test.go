package policy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A device node cannot be opened through a hostPath. Allowing the path would only lead to EPERM.
func TestARefusedDevicePathNamesTheResource(t *testing.T) {
	for path, resource := range map[string]string{
		"/dev/ttyUSB0": "serial", "/dev/ttyACM1": "serial", "/dev/ttyAMA0": "serial", "/dev/serial0": "serial", "/dev/ttyS0": "serial",
		"/dev/serial/by-id/usb-FTDI": "serial", "/dev/gpiochip0": "gpiochip", "/dev/i2c-1": "i2c-1", "/dev/spidev0.1": "spi0",
		"/dev/video0": "video", "/dev/v4l/by-id/cam": "video", "/dev/dri/renderD128": "render", "/dev/../dev/ttyUSB0": "serial",
		"/dev/shm": "", "/dev": "", "/dev/tty": "", "/srv/ttyUSB0": "", "/dev/i2c-": "", "/dev/video": "",
	} {
		spec := &corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}},
			Containers: []corev1.Container{{Name: "c"}},
		}
		refusals := Default().Judge(spec, field.NewPath("spec"))
		if len(refusals) != 1 {
			t.Fatalf("%s: the refusals are %+v, want one", path, refusals)
		}
		r := refusals[0]
		if names := strings.Contains(r.Why, "flotilla.dev/"+resource+":"); resource != "" &&
			(!names || r.Allow != "") ||
			resource == "" && (strings.Contains(r.Why, "flotilla.dev/") || r.Allow == "") {
			t.Errorf("%s: refused with %q, allowed by %q; want %q", path, r.Why, r.Allow, resource)
		}
		// A privileged container opens every device.
		spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
		if r := Default().Judge(spec, field.NewPath("spec"))[0]; r.Allow == "" {
			t.Errorf("%s in a privileged container is refused: %q", path, r.Why)
		}
	}
}
