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

// Neither Docker 20.10 nor Podman's Docker API mounts images. So what an image volume shows is a
// copy of the image's files, made once and mounted read-only by whoever uses that image:
//
//	images/<digest>       a copy; a name that it gets when it is whole, and on the disk
//	images/.new-<digest>  one that is being made, or was when the agent was killed
//	images/.old-<digest>  one that is being removed
//	pods/<uid>/.image-<digest>.<container>  an empty file: a container of the pod uses it. It comes before the copy,
//	                            and goes with the pod, or when the container starts with another image
//
// A copy that no container uses is removed.
const (
	imagesDir = "images"
	usesImage = ".image-"
	newImage  = ".new-"
	oldImage  = ".old-"
	imageStep = 16 << 20 // bytes, between two looks at how much room there is
)

// LabelImageOf is on the containers that the agent makes to read an image, and says of which state
// directory it is.
const LabelImageOf = "flotilla.dev/image-of"

var errNoRoom = errors.New(
	"there is no room for it on the disk of the agent's directory, or pods would be evicted for that")

// imageID is what is behind the sha256: of an image's id, for the name of a copy.
func imageID(id string) (string, error) {
	digest, ok := strings.CutPrefix(id, "sha256:")
	if b, err := hex.DecodeString(digest); !ok || err != nil || len(b) != 32 {
		return "", fmt.Errorf("its id %.80q is no sha256 digest", id)
	}
	return strings.ToLower(digest), nil
}

// copies are how one copy is made, or removed, after the other.
type copies struct {
	once   sync.Once
	one    chan struct{} // held while images are copied, or copies removed
	untidy atomic.Bool   // copies were to be removed while it was held
}

func (c *copies) copying() chan struct{} {
	c.once.Do(func() { c.one = make(chan struct{}, 1) })
	return c.one
}

// An ImageCopy is what is asked for with a copy of an image's files.
type ImageCopy struct {
	Image     string
	Pod       types.UID
	Container string // that mounts it
	State     string // of the state directory: LabelImageOf
	Hard      hardware.Thresholds
}

// CopyImage sees to it that there is a copy of an image's files for a container of a pod, and
// returns its name.
func (d *Disk) CopyImage(ctx context.Context, e engine.Engine, c ImageCopy) (string, error) {
	copying := d.images.copying()
	select { // one after the other: the second pod with an image has but to wait for the first one's copy
	case copying <- struct{}{}:
		defer func() {
			<-copying
			if d.images.untidy.Swap(false) {
				d.TidyImages()
			}
		}()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	id, there, err := e.HasImage(ctx, c.Image)
	if err == nil && !there {
		err = errors.New("it has been removed meanwhile")
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
	if err := private(dir); err != nil {
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

// fillImage makes a copy, whole or not at all.
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
			return nil, fmt.Errorf("its files have %d bytes, and %d may come: %w", size, max(room, 0), errNoRoom)
		}
		d.logger().Info("copy an image for the volumes of pods", "image", c.Image, "bytes", size)
		return u.measured(func() (int64, error) { return roomFor(in, c.Hard) }), nil
	})
	if err == nil {
		err = u.end()
	}
	if err == nil {
		err = settleDisk(in)
	}
	if err = errors.Join(err, in.Close()); err != nil {
		return err
	}
	return errors.Join(root.Rename(fresh, name), fsync.Dir(root.Name()))
}

// measured is put for as long as there is room: others write to the disk meanwhile.
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

// roomFor is how many bytes may come to a disk before its pods are evicted for it.
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

// settleDisk returns when everything is on the disk that was written to it.
func settleDisk(in *os.Root) error {
	dir, err := in.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd()))), dir.Close())
}

// useImage notes that a container of a pod uses a copy.
func (d *Disk) useImage(pod types.UID, container, name string) error {
	if !podspec.IsUID(pod) {
		return fmt.Errorf("no directory is made for pod %q: such names lead elsewhere", pod)
	}
	dir := filepath.Join(d.Root, PodsDir, string(pod))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, usesImage+name+"."+container), nil, 0o600)
}

// UsesOnly notes that a container, which is about to start, uses these copies and no more: with a
// tag that moves, each of its starts may have had another. It tells whether it used any.
func (d *Disk) UsesOnly(pod types.UID, container string, copies map[string]string) (let bool) {
	if !podspec.IsUID(pod) || len(copies) == 0 {
		return false
	}
	dir := filepath.Join(d.Root, PodsDir, string(pod))
	for _, file := range entries(dir) {
		mark, ours := strings.CutPrefix(file, usesImage)
		name, by, _ := strings.Cut(mark, ".")
		if ours && by == container && !slices.Contains(slices.Collect(maps.Values(copies)), name) &&
			os.Remove(filepath.Join(dir, file)) == nil {
			let = true
		}
	}
	return let
}

// imageVolume opens the copy that a volume shows.
func (d *Disk) imageVolume(src podspec.Sources, v *corev1.Volume) (p volumePlace, err error) {
	name := src.Images[v.Name]
	if name == "" {
		return p, errors.New("its image is not there")
	}
	p.fixed, p.readOnly = true, true
	p.file, err = hold(filepath.Join(d.Root, imagesDir, name))
	return p, err
}

// dropImages removes the copies that no pod uses, and what is left of others. Nothing may be copied
// meanwhile.
func (d *Disk) dropImages() error {
	dir := filepath.Join(d.Root, imagesDir)
	names := entries(dir)
	if d.Root == "" || len(names) == 0 {
		return nil
	}
	used := map[string]bool{}
	for _, pod := range d.Pods() {
		for _, name := range entries(filepath.Join(d.Root, PodsDir, string(pod))) {
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
		if !strings.HasPrefix(name, ".") { // half of one must not look like a whole one
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

// TidyImages removes the copies that no pod uses, unless one is being made: whoever makes it does
// so afterwards.
func (d *Disk) TidyImages() {
	copying := d.images.copying()
	select {
	case copying <- struct{}{}:
	default:
		d.images.untidy.Store(true)
		return
	}
	if err := d.dropImages(); err != nil {
		d.logger().Error("remove the copies of images that no pod uses any more; it is tried again when the next pod has gone", "err", err)
	}
	<-copying
}

// EndReaders removes the containers that an agent before this one has left when it read images.
func (d *Disk) EndReaders(ctx context.Context, e engine.Engine, state string) {
	copying := d.images.copying()
	copying <- struct{}{}
	defer func() { <-copying }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := RemoveReaders(ctx, e, state); err != nil {
		d.logger().Warn("remove what an agent before this one has left when it read an image; the next one will try again",
			"err", err)
	}
}

// RemoveReaders removes the containers that were made to read images.
func RemoveReaders(ctx context.Context, e engine.Engine, state string) error {
	list, err := e.Containers(ctx, LabelImageOf+"="+state)
	for _, c := range list {
		if strings.HasPrefix(c.Name, "flotilla-image-"+state+"-") { // an image may bear the label
			err = errors.Join(err, e.Remove(ctx, c.ID))
		}
	}
	return err
}
