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

// Capabilities of a video node, as V4L2 calls them.
const (
	capOutput   = 0x2 | 0x2000    // V4L2_CAP_VIDEO_OUTPUT, also _MPLANE: it takes pictures
	capM2M      = 0x8000 | 0x4000 // V4L2_CAP_VIDEO_M2M, also _MPLANE: it takes some and gives others
	capOfDevice = 0x80000000      // V4L2_CAP_DEVICE_CAPS: there are others for this node alone
)

// codecs are names of drivers that change pictures in memory, for where the capabilities are not
// known.
var codecs = regexp.MustCompile(`(^|[^A-Za-z])(codec|p?isp|hevc|rpivid|vpu|hantro|rkvdec|cedrus)`)

// videoDevices are one device for all nodes of one piece of hardware: a camera has one for its
// frames and one for their description, a codec one for each direction. What gives pictures of the
// world is video; what is given pictures, such as an encoder or an image processor, is a codec.
// They are known by the place where they are connected.
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

// asked are the capabilities of video nodes by their inode in /sys, which a node has for as long as
// it is there: opening one wakes its camera.
var asked sync.Map

// capabilities are what a video node can do; false where it cannot be asked. In the root of another
// board the file in the place of the node may hold them.
func (t tree) capabilities(dir, node string) (caps uint64, known bool) {
	if !t.real() {
		caps, err := strconv.ParseUint(t.text(node), 0, 32)
		return caps, err == nil
	}
	const queryCap = 0x80685600 // VIDIOC_QUERYCAP: driver, card, bus, version, capabilities of all nodes, of this one
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
