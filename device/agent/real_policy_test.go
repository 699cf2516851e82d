package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/pause"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// pidsOf reads a value from the pids cgroup of a process; -1 means "max".
func pidsOf(t *testing.T, pid int, file string) int {
	t.Helper()
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		dir := "/sys/fs/cgroup"
		if parts[1] == "pids" {
			dir = "/sys/fs/cgroup/pids"
		} else if parts[0] != "0" || parts[2] == "/" {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, parts[2], file))
		if err != nil {
			t.Fatal(err)
		}
		if s := strings.TrimSpace(string(body)); s != "max" {
			n, err := strconv.Atoi(s)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return -1
	}
	t.Skip("this machine has no pids cgroup")
	return 0
}

// A fork bomb gets no more processes than the owner's limit. Without the owner's limit there is no
// limit.
func TestRealEngineLimitsProcesses(t *testing.T) {
	realEngines(t, func(t *testing.T, socket string) {
		for _, limit := range []int64{0, 64, policy.Unlimited} {
			d := newRealDevice(t, socket)
			d.end()
			d.policy.PodPidsLimit = limit
			d.start()
			pod := makePod("bomb", "wait")
			pod.UID = k8stypes.UID("uid-bomb-" + d.node)
			pod.Spec.TerminationGracePeriodSeconds = new(int64)
			d.desire(1, pod)
			d.await("the pod runs", func() bool { return ready(d.pod("bomb")) })
			pid := 0
			for _, c := range d.list() {
				pid = max(pid, c.Pid)
			}
			want := int(d.policy.PidsLimit())
			if got := pidsOf(t, pid, "pids.max"); got != want {
				t.Errorf("podPidsLimit %d: the kernel's limit is %d, want %d", limit, got, want)
			}
			if limit == 64 {
				bomb(t, d, pid, want)
			}
			d.end()
		}
	})
}

// bomb starts 60 processes of about six threads each, at the same time, in a container.
func bomb(t *testing.T, d *realDevice, pid, limit int) {
	var failed bool
	most := 0
	id := d.list()[0].ID
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, err := d.eng.Exec(t.Context(), id, []string{"/tool", "spawn", "60", "5s"},
			engine.Streams{Stdout: io.Discard, Stderr: io.Discard})
		failed = err != nil || code != 0
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(20 * time.Millisecond):
			most = max(most, pidsOf(t, pid, "pids.current"))
		}
	}
	// The limit stops forks, but not processes that the engine adds from outside.
	if !failed || most > limit+30 || most < 16 {
		t.Errorf("the command failed: %v, with %d threads at most; want it to fail, and %d threads or fewer",
			failed, most,
			limit+30)
	}
	if st := d.pod("bomb"); !ready(st) {
		t.Error("the pod itself did not survive")
	}
}

// desire stores a desired state of these pods.
func (d *realDevice) desire(generation int64, pods ...corev1.Pod) {
	d.t.Helper()
	if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods}); err != nil {
		d.t.Fatal(err)
	}
}

// pauseImage is an image with only the sandbox's program; the label distinguishes two such images.
func pauseImage(t *testing.T, label string) v1.Image {
	t.Helper()
	program, err := pause.Program(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, body := range map[string][]byte{"pause": program, "label": []byte(label)} {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(body)
	}
	_ = w.Close()
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(buf.Bytes(), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file.OS, file.Architecture, file.Config.Cmd = "linux", runtime.GOARCH, []string{"/pause"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// With a real engine and a real registry, a tag moves from a signed to an unsigned image after the
// signature check and before the pull. The signed image runs.
func TestRealEngineRunsTheSignedImage(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	realEngines(t, func(t *testing.T, socket string) {
		var moved atomic.Bool
		var move func()
		handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
			if strings.HasSuffix(r.URL.Path, ".sig") && r.Method == http.MethodGet &&
				moved.CompareAndSwap(false, true) {
				move() // the agent has read the signature: move the tag now
			}
		}))
		defer server.Close()
		tag, err := name.NewTag(fmt.Sprintf("%s/team-%d/web:1", strings.TrimPrefix(server.URL, "http://"),
			time.Now().UnixNano()))
		if err != nil {
			t.Fatal(err)
		}
		good, evil := pauseImage(t, "good "+tag.String()), pauseImage(t, "evil "+tag.String())
		digest, err := good.Digest()
		if err != nil {
			t.Fatal(err)
		}
		put := func(tag name.Tag, img v1.Image) {
			if err := remote.Write(tag, img); err != nil {
				t.Error(err)
			}
		}
		move = func() { put(tag, evil) }
		moved.Store(true)
		put(tag, good)
		payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest.String())
		signed, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
			Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
			Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(ed25519.Sign(private, payload))},
		})
		if err != nil {
			t.Fatal(err)
		}
		put(tag.Context().Tag("sha256-"+digest.Hex+".sig"), signed)
		moved.Store(false)

		pinned := tag.Context().String() + "@" + digest.String()
		t.Cleanup(func() { // after the containers, which use the images
			if eng, err := openReal(socket); err == nil {
				_ = eng.RemoveImage(context.Background(), pinned)
			}
		})
		d := newRealDevice(t, socket)
		d.end()
		d.policy.Signatures = []policy.Signature{{Images: []string{tag.RegistryStr()},
			Keys: []string{string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}}}
		d.start()
		pod := makePod("web", "")
		pod.UID = k8stypes.UID("uid-web-" + d.node)
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy,
			pod.Spec.Containers[0].Args = tag.String(),
			corev1.PullIfNotPresent, nil
		d.desire(1, pod)
		d.await("the signed image runs", func() bool { return ready(d.pod("web")) })
		if got := d.list(); len(got) != 1 || got[0].Image != pinned || !moved.Load() {
			t.Errorf("the status is %+v, want the image %s; the tag has moved: %v", got, pinned, moved.Load())
		}

		unsigned := pod.DeepCopy()
		unsigned.Name, unsigned.UID = "evil", k8stypes.UID("uid-evil-"+d.node)
		unsigned.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways // pull the tag's present image
		d.desire(2, pod, *unsigned)
		d.await("the pod with the unsigned image waits", func() bool {
			st := d.pod("evil")
			return st != nil && len(st.ContainerStatuses) == 1 && st.ContainerStatuses[0].State.Waiting != nil &&
				st.ContainerStatuses[0].State.Waiting.Reason == "SignatureValidationFailed"
		})

		server.Close() // without the registry a verified image starts again
		d.end()
		if err := d.eng.Stop(t.Context(), d.list()[0].ID, 0); err != nil {
			t.Error(err)
		}
		d.start()
		defer func() { d.end() }()
		d.await("the signed image runs again", func() bool {
			st := d.pod("web")
			return ready(st) && st.ContainerStatuses[0].RestartCount > 0
		})
	})
}
