package hardware

import (
	"path/filepath"
	"strings"
	"testing"
)

// videoRoot has these video nodes: number, name, place and capabilities; empty capabilities are
// unknown.
func videoRoot(t *testing.T, nodes ...string) string {
	files := map[string]string{}
	for _, n := range nodes {
		f := strings.Split(n, "|")
		files["sys/class/video4linux/video"+f[0]+"/name"], files["dev/video"+f[0]] = f[1], f[3]
		files["sys/devices/"+f[2]+"/x"] = ""
	}
	root := rootOf(t, files)
	for _, n := range nodes {
		f := strings.Split(n, "|")
		link(t, filepath.Join(root, "sys/devices", f[2]), filepath.Join(root, "sys/class/video4linux/video"+f[0]+"/device"))
	}
	return root
}

func TestVideoDevicesCaptureFrames(t *testing.T) {
	for _, c := range []struct {
		rule  string
		nodes []string
		want  string
	}{
		{"a USB camera, with its description", []string{"0|HD Webcam|usb/1-1.2:1.0|0x84200001", "1|HD Webcam|usb/1-1.2:1.0|0x84a00000"}, "video 1-1.2:1.0 /dev/video0 /dev/video1"},
		{"a codec, of one plane or several", []string{"10|a|soc/one|0x84208000", "11|a|soc/two|0x84204000"}, "codec one /dev/video10; codec two /dev/video11"},
		{"an image processor only converts frames", []string{"13|out|soc/x|0x84200002", "14|capture|soc/x|0x84200001", "16|stats|soc/x|0x84a00000"}, "codec x /dev/video13 /dev/video14 /dev/video16"},
		{"a camera of the Pi 5 receives settings, not frames", []string{"0|rp1-cfe-csi2_ch0|soc/1f00128000.csi|0x84a00001", "7|rp1-cfe-fe_config|soc/1f00128000.csi|0x8c200000"}, "video 1f00128000.csi /dev/video0 /dev/video7"},
		{"a multi-planar camera", []string{"0|rkisp1_mainpath|soc/x|0x84201000"}, "video x /dev/video0"},
		{"without capabilities the name decides", []string{"10|bcm2835-codec-decode|soc/a|", "13|bcm2835-isp-output0|soc/b|", "19|rpivid|soc/c|", "20|pispbe-input|soc/d|", "0|USB Display Capture|usb/1-1:1.0|", "1|unicam-image|soc/fe801000.csi|"},
			"codec a /dev/video10; codec b /dev/video13; codec c /dev/video19; codec d /dev/video20; video 1-1:1.0 /dev/video0; video fe801000.csi /dev/video1"},
	} {
		if got := describe(devices(tree(videoRoot(t, c.nodes...)))); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

// A camera keeps its ID when the kernel numbers the nodes differently.
func TestACameraKeepsItsIDUnderAnotherNumber(t *testing.T) {
	before, after := devices(tree(videoRoot(t, "0|cam|usb/1-1:1.0|0x1", "1|cam|usb/1-2:1.0|0x1"))), devices(
		tree(videoRoot(t, "1|cam|usb/1-1:1.0|0x1", "0|cam|usb/1-2:1.0|0x1")),
	)
	if !after[0].Same(before[0]) || after[0].Same(before[1]) || after[0].Nodes[0] != "/dev/video1" {
		t.Errorf("the cameras changed from %v to %v, want the first one's ID at /dev/video1", before, after)
	}
}
