package hardware

import (
	"cmp"
	"encoding/binary"
	"path"
	"regexp"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// V4L2 capabilities of a video node.
const (
	capOutput   = 0x2 | 0x2000    // V4L2_CAP_VIDEO_OUTPUT, also _MPLANE: the node receives frames
	capM2M      = 0x8000 | 0x4000 // V4L2_CAP_VIDEO_M2M, also _MPLANE: the node converts frames
	capOfDevice = 0x80000000      // V4L2_CAP_DEVICE_CAPS: the node has capabilities of its own
)

// codecs matches the names of drivers that convert frames in memory. The name decides only if the
// capabilities are unknown.
var codecs = regexp.MustCompile(`(^|[^A-Za-z])(codec|p?isp|hevc|rpivid|vpu|hantro|rkvdec|cedrus)`)

// videoDevices groups the nodes of one piece of hardware, which its place identifies: a camera has
// a node for frames and one for metadata, a codec one for each direction. Hardware that captures is
// video; an encoder or image processor that receives frames is a codec.
func (s *search) videoDevices() {
	for _, dir := range s.t.glob("/sys/class/video4linux/video*") {
		name, title := path.Base(dir), s.t.text(dir+"/name")
		id, node := cmp.Or(s.t.place(dir+"/device"), name), "/dev/"+name
		d := s.join("video", id, node, dir+"/device")
		d.Title = cmp.Or(d.Title, title)
		if caps, known := s.t.capabilities(dir, node); known && caps&(capOutput|capM2M) != 0 ||
			!known && codecs.MatchString(title+" "+id) {
			d.Resource = "codec"
		}
	}
}

// asked caches the capabilities of video nodes by their inode in /sys, which stays while the node
// exists, because opening a node wakes its camera.
var asked sync.Map

// capabilities returns the capabilities of a video node; false if unknown. In another board's root
// a file in the node's place may contain them.
func (t tree) capabilities(dir, node string) (caps uint64, known bool) {
	if !t.real() {
		caps, err := strconv.ParseUint(t.text(node), 0, 32)
		return caps, err == nil
	}
	const queryCap = 0x80685600 // VIDIOC_QUERYCAP: driver, card, bus, version, capabilities of all nodes and of this one
	var st unix.Stat_t
	if unix.Stat(t.path(dir), &st) != nil {
		return 0, false
	}
	if caps, ok := asked.Load(st.Ino); ok {
		return caps.(uint64), true
	}
	answer := t.ioctl(node, queryCap, 104)
	if answer == nil {
		return 0, false
	}
	if caps = uint64(binary.NativeEndian.Uint32(answer[84:])); caps&capOfDevice != 0 {
		caps = uint64(binary.NativeEndian.Uint32(answer[88:]))
	}
	asked.Store(st.Ino, caps)
	return caps, true
}
