package volume

import (
	"archive/tar"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/fsync"
)

// Docker 20.10 and Podman's Docker API cannot mount images. So an image volume is a read-only copy
// of the image's files, made once for all pods:
//
//	images/<digest>       a complete copy
//	images/.new-<digest>  an incomplete copy, in progress or interrupted
//	images/.old-<digest>  a copy being removed
//	pods/<uid>/.image-<digest>.<container>  an empty file: a container uses the copy. Made before
//	                            the copy; removed with the pod, or when the container uses another image
//
// An unused copy is removed.
const (
	imagesDir = "images"
	usesImage = ".image-"
	newImage  = ".new-"
	oldImage  = ".old-"
	imageStep = 16 << 20 // bytes written between two checks of the free space
)

// LabelImageOf is the label of containers that exist only to read an image; its value is the state
// directory's id.
const LabelImageOf = "flotilla.dev/image-of"

var errNoRoom = errors.New(
	"the disk of the agent's directory is too full for the image: pods would be evicted")

// imageID returns the name of an image's copy: the hash in the image's id.
func imageID(id string) (string, error) {
	digest, ok := strings.CutPrefix(id, "sha256:")
	if b, err := hex.DecodeString(digest); !ok || err != nil || len(b) != 32 {
		return "", fmt.Errorf("the image id %.80q is not a sha256 digest", id)
	}
	return strings.ToLower(digest), nil
}

// copies serializes making and removing copies.
type copies struct {
	once   sync.Once
	one    chan struct{} // semaphore: one goroutine makes or removes copies
	untidy atomic.Bool   // a removal was skipped while a copy was in progress
}

func (c *copies) copying() chan struct{} {
	c.once.Do(func() { c.one = make(chan struct{}, 1) })
	return c.one
}

// An ImageCopy is a request for a copy of an image's files.
type ImageCopy struct {
	Image     string
	Pod       types.UID
	Container string // the container that mounts the copy
	State     string // id of the state directory, for LabelImageOf
	Hard      hardware.Thresholds
}

// CopyImage makes a copy of an image's files for a container of a pod, unless the copy exists, and
// returns its name.
func (d *Disk) CopyImage(ctx context.Context, e engine.Engine, c ImageCopy) (string, error) {
	copying := d.images.copying()
	select { // a second pod with the same image waits for the first pod's copy
	case copying <- struct{}{}:
		defer func() {
			<-copying
			if d.images.untidy.Swap(false) {
				d.RemoveUnusedImages()
			}
		}()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	id, there, err := e.HasImage(ctx, c.Image)
	if err == nil && !there {
		err = errors.New("the image was removed meanwhile")
	}
	if err != nil {
		return "", err
	}
	name, err := imageID(id)
	if err != nil {
		return "", err
	}
	if err := d.useImage(c.Pod, c.Container, name); err != nil {
		return "", err
	}
	dir := filepath.Join(d.Root, imagesDir)
	if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.IsDir() {
		return name, nil
	}
	if err := makePrivate(dir); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	err = d.fillImage(ctx, e, c, root, name)
	if err != nil {
		err = errors.Join(err, removeTree(root, newImage+name))
	}
	return name, errors.Join(err, root.Close())
}

// fillImage makes a copy, completely or not at all.
func (d *Disk) fillImage(ctx context.Context, e engine.Engine, c ImageCopy, root *os.Root, name string) error {
	fresh := newImage + name
	if err := errors.Join(removeTree(root, fresh), root.Mkdir(fresh, 0o755), root.Chmod(fresh, 0o755)); err != nil {
		return err
	}
	in, err := root.OpenRoot(fresh)
	if err != nil {
		return err
	}
	u := &unpacking{root: in, owned: os.Geteuid() == 0, closed: map[string]os.FileMode{}}
	spec := engine.Spec{Name: fmt.Sprintf("flotilla-image-%s-%s", c.State, name[:12]),
		Labels: map[string]string{LabelImageOf: c.State}}
	err = e.ImageTree(ctx, c.Image, spec, func(size int64) (func(*tar.Header, io.Reader) error, error) {
		room, err := roomFor(in, c.Hard)
		if err != nil {
			return nil, err
		}
		if size > room {
			return nil, fmt.Errorf("its files have %d bytes, and %d bytes are free: %w", size, max(room, 0), errNoRoom)
		}
		d.logger().Info("copy an image for the volumes of pods", "image", c.Image, "bytes", size)
		return u.measured(func() (int64, error) { return roomFor(in, c.Hard) }), nil
	})
	if err == nil {
		err = u.end()
	}
	if err == nil {
		err = syncDisk(in)
	}
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	return errors.Join(root.Rename(fresh, name), fsync.Dir(root.Name()))
}

// measured returns put with checks of the free space, since other programs write to the disk too.
func (u *unpacking) measured(room func() (int64, error)) func(*tar.Header, io.Reader) error {
	return func(h *tar.Header, data io.Reader) error {
		if n := onDisk(h.Size); u.left < n {
			now, err := room()
			if err != nil {
				return err
			}
			u.left = min(max(imageStep, n), now)
		}
		return u.put(h, data)
	}
}

// roomFor returns how many bytes can be written to a disk before its pods are evicted.
func roomFor(in *os.Root, hard hardware.Thresholds) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(in.Name(), &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: in.Name(), Err: err}
	}
	block := int64(st.Bsize)
	least := max(hard.Least(fleet.SignalNodeFsAvailable, int64(st.Blocks)*block),
		hard.Least(fleet.SignalOutOfDiskAvailable, int64(st.Blocks)*block))
	return int64(st.Bavail)*block - least, nil
}

// syncDisk syncs the whole file system.
func syncDisk(in *os.Root) error {
	dir, err := in.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd()))), dir.Close())
}

// useImage records that a container of a pod uses a copy.
func (d *Disk) useImage(pod types.UID, container, name string) error {
	if !podspec.IsUID(pod) {
		return fmt.Errorf("pod uid %q is not valid for a directory", pod)
	}
	dir := filepath.Join(d.Root, PodsDir, string(pod))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, usesImage+name+"."+container), nil, 0o600)
}

// SetUsedImages records that a container that is about to start uses only these copies: an earlier
// start may have used another image with the same tag. It reports whether another copy became
// unused.
func (d *Disk) SetUsedImages(pod types.UID, container string, copies map[string]string) (dropped bool) {
	if !podspec.IsUID(pod) || len(copies) == 0 {
		return false
	}
	dir := filepath.Join(d.Root, PodsDir, string(pod))
	for _, file := range namesIn(dir) {
		mark, ours := strings.CutPrefix(file, usesImage)
		name, by, _ := strings.Cut(mark, ".")
		if ours && by == container && !slices.Contains(slices.Collect(maps.Values(copies)), name) &&
			os.Remove(filepath.Join(dir, file)) == nil {
			dropped = true
		}
	}
	return dropped
}

// imageVolume opens the copy of a volume.
func (d *Disk) imageVolume(src podspec.Sources, v *corev1.Volume) (p volumePlace, err error) {
	name := src.Images[v.Name]
	if name == "" {
		return p, errors.New("the volume's image was not copied")
	}
	p.fixed, p.readOnly = true, true
	p.file, err = openPath(filepath.Join(d.Root, imagesDir, name))
	return p, err
}

// dropImages removes unused copies and remains of interrupted ones. The caller makes sure that no
// copy is in progress.
func (d *Disk) dropImages() error {
	dir := filepath.Join(d.Root, imagesDir)
	names := namesIn(dir)
	if d.Root == "" || len(names) == 0 {
		return nil
	}
	used := map[string]bool{}
	for _, pod := range d.Pods() {
		for _, name := range namesIn(filepath.Join(d.Root, PodsDir, string(pod))) {
			if mark, ok := strings.CutPrefix(name, usesImage); ok {
				name, _, _ := strings.Cut(mark, ".")
				used[name] = true
			}
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if used[name] {
			continue
		}
		if !strings.HasPrefix(name, ".") { // rename first: an interrupted removal must not look like a complete copy
			if err := root.Rename(name, oldImage+name); err != nil {
				errs = append(errs, err)
				continue
			}
			name = oldImage + name
		}
		errs = append(errs, removeTree(root, name))
	}
	return errors.Join(append(errs, root.Close())...)
}

// RemoveUnusedImages removes unused copies. While a copy is in progress, CopyImage does that
// afterwards.
func (d *Disk) RemoveUnusedImages() {
	copying := d.images.copying()
	select {
	case copying <- struct{}{}:
	default:
		d.images.untidy.Store(true)
		return
	}
	if err := d.dropImages(); err != nil {
		d.logger().Error("remove unused copies of images; the removal of the next pod tries again", "err", err)
	}
	<-copying
}

// EndImageReaders removes containers that an earlier agent made to read images, and logs errors.
func (d *Disk) EndImageReaders(ctx context.Context, e engine.Engine, state string) {
	copying := d.images.copying()
	copying <- struct{}{}
	defer func() { <-copying }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := RemoveImageReaders(ctx, e, state); err != nil {
		d.logger().Warn("remove containers with which an earlier agent read images; the next start tries again",
			"err", err)
	}
}

// RemoveImageReaders removes containers that exist only to read images.
func RemoveImageReaders(ctx context.Context, e engine.Engine, state string) error {
	list, err := e.Containers(ctx, LabelImageOf+"="+state)
	for _, c := range list {
		if strings.HasPrefix(c.Name, "flotilla-image-"+state+"-") { // an image may set the label too
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	return err
}
