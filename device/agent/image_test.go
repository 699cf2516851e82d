package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/signature"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/policy/policytest"
	"flotilla.dev/shared/wire"
)

// A fakeRegistry simulates a registry with signatures.
type fakeRegistry struct {
	mu      sync.Mutex
	digest  string // the tag's present digest
	err     error
	queries int
	key     string
}

func (n *fakeRegistry) verify(_ context.Context, image string, keys []policy.Key,
	_ signature.Credentials) (signature.Verified, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queries++
	if n.err != nil {
		return signature.Verified{}, n.err
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(image, "registry.example.org/"), ":")
	return signature.Verified{Image: "registry.example.org/" + name + "@" + n.digest, Digest: n.digest, Key: n.key}, nil
}

// set changes the registry's response.
func (n *fakeRegistry) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// requests is the number of requests.
func (n *fakeRegistry) requests() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queries
}

func digestOf(letter string) string { return "sha256:" + strings.Repeat(letter, 64) }

// A signed image runs by its verified digest, also without network. A container with an unsigned
// image waits with a reason and a message.
func TestSignedImages(t *testing.T) {
	sign := func(key string) policy.Document {
		d := policy.Default()
		d.Signatures = []policy.Signature{{Images: []string{"registry.example.org"}, Keys: []string{key}}}
		return d
	}
	keyID := func(pem string) string {
		keys, err := policy.ParseKeys(pem)
		if err != nil {
			t.Fatal(err)
		}
		return keys[0].ID
	}
	untrusted := fmt.Errorf("image registry.example.org/web:1: %w: it is not signed", signature.ErrUntrusted)
	offline := errors.New("dial tcp: no route to host")
	offered := enginetest.Offer{Program: toolOrPause}
	setUp := func(t *testing.T, pull corev1.PullPolicy, commands ...string) (*device, *fakeRegistry, corev1.Pod) {
		d := newDevice(t)
		n := &fakeRegistry{digest: digestOf("a"), key: keyID(policytest.Ed25519)}
		d.config.Policy, d.config.Verify = plan.Policy{Document: sign(policytest.Ed25519)}, n.verify
		for _, letter := range []string{"a", "b"} {
			d.fake.OfferImage("registry.example.org/web@"+digestOf(letter), offered)
		}
		d.fake.OfferImage("registry.example.org/web:1", offered) // the tag's present image
		pod := makePod("web", commands...)
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Image, pod.Spec.Containers[i].ImagePullPolicy = "registry.example.org/web:1", pull
		}
		return d, n, pod
	}
	images := func(d *device) (all []string) {
		list, err := d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			all = append(all, c.Image+" "+string(c.State))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	waiting := func(t *testing.T, d *device, reason string) string {
		t.Helper()
		st, _ := d.pod("web")
		if len(st.ContainerStatuses) != 1 || st.ContainerStatuses[0].State.Waiting == nil ||
			st.ContainerStatuses[0].State.Waiting.Reason != reason {
			t.Fatalf("the pod's status is %+v, want a container that waits with %s", st.ContainerStatuses, reason)
		}
		return st.ContainerStatuses[0].State.Waiting.Message
	}
	first, second := "registry.example.org/web@"+digestOf("a"), "registry.example.org/web@"+digestOf("b")

	for _, c := range []struct {
		name string
		f    func(t *testing.T)
	}{
		{"the container and the sandbox of a signed image run by its digest", func(t *testing.T) {
			d, _, pod := setUp(t, corev1.PullIfNotPresent, "wait", "wait")
			d.start()
			defer func() { d.end() }()
			d.desire(1, pod)
			time.Sleep(20 * time.Second)
			if got := images(d); !slices.Equal(got, []string{first + " running"}) {
				t.Errorf("the containers run %q, want only the image %s", got, first)
			}
		}},
		{"an unsigned image waits, and runs once it is signed", func(t *testing.T) {
			d, n, pod := setUp(t, corev1.PullIfNotPresent, "wait")
			n.set(func() { n.err = untrusted })
			d.start()
			defer func() { d.end() }()
			d.desire(1, pod)
			time.Sleep(15 * time.Second)
			if m := waiting(t, d, "SignatureValidationFailed"); !strings.Contains(m,
				"registry.example.org/web:1: signature validation failed: it is not signed") {
				t.Errorf("the pod's message is %q, want that the image is not signed", m)
			}
			if got := images(d); len(got) != 0 || !slices.Contains(d.reasons(), "Failed") {
				t.Errorf("containers run %q, events %q; want none, and Failed", got, d.reasons())
			}
			n.set(func() { n.err = nil })
			time.Sleep(6 * time.Minute)
			if got := images(d); !slices.Equal(got, []string{first + " running"}) {
				t.Errorf("the containers run %q, want only the image %s", got, first)
			}
		}},
		{"without network a verified image starts again after a restart of the agent and a power cut", func(t *testing.T) {
			for _, pull := range []corev1.PullPolicy{corev1.PullIfNotPresent, corev1.PullAlways, corev1.PullNever} {
				d, n, pod := setUp(t, pull, "wait")
				if pull == corev1.PullNever {
					d.fake.AddImage(first, 1, toolOrPause)
				}
				d.start()
				d.desire(1, pod)
				time.Sleep(20 * time.Second)
				d.end()
				n.set(func() { n.err = offline })
				d.fake.PowerCut()
				d.board.set(func(b *board) { b.boot = "boot-2" })
				d.start()
				time.Sleep(time.Minute)
				if got := images(d); !slices.Contains(got, first+" running") {
					t.Errorf("%s: the containers run %q, want the image %s", pull, got, first)
				}
				if used := slices.Contains(d.reasons(), "PullFailedUsingPresent"); used != (pull == corev1.PullAlways) {
					t.Errorf("%s: events %q; want PullFailedUsingPresent only with Always", pull, d.reasons())
				}
				d.end()
			}
		}},
		{"without network an unverified image waits with ErrImagePull", func(t *testing.T) {
			d, n, pod := setUp(t, corev1.PullIfNotPresent, "wait")
			d.fake.AddImage("registry.example.org/web:1", 1, toolOrPause) // the device's owner has loaded the image
			n.set(func() { n.err = offline })
			d.start()
			defer func() { d.end() }()
			d.desire(1, pod)
			time.Sleep(5 * time.Second)
			if m := waiting(t, d, "ErrImagePull"); !strings.Contains(m,
				"its signature cannot be checked: dial tcp: no route to host") {
				t.Errorf("the pod's message is %q, want that the signature cannot be checked", m)
			}
		}},
		{"a tag that moves to a signed image is pulled with Always but not with IfNotPresent", func(t *testing.T) {
			for pull, want := range map[corev1.PullPolicy]string{corev1.PullAlways: second,
				corev1.PullIfNotPresent: first} {
				d, n, pod := setUp(t, pull, "wait")
				d.start()
				d.desire(1, pod)
				time.Sleep(20 * time.Second)
				n.set(func() { n.digest = digestOf("b") })
				d.fake.Exit(d.newest(t, "web"), 1)
				time.Sleep(time.Minute)
				if got := images(d); !slices.Contains(got, want+" running") {
					t.Errorf("%s: the containers run %q, want the image %s", pull, got, want)
				}
				d.end()
			}
		}},
		{"with Always a container does not start if its tag moves to an unsigned image", func(t *testing.T) {
			d, n, pod := setUp(t, corev1.PullAlways, "wait")
			d.start()
			defer func() { d.end() }()
			d.desire(1, pod)
			time.Sleep(20 * time.Second)
			n.set(func() { n.err = untrusted })
			d.fake.Exit(d.newest(t, "web"), 1)
			time.Sleep(15 * time.Second)
			waiting(t, d, "SignatureValidationFailed")
		}},
		{"a removed key is no longer valid, with or without network", func(t *testing.T) {
			for _, err := range []error{untrusted, offline} {
				d, n, pod := setUp(t, corev1.PullIfNotPresent, "wait")
				d.start()
				d.desire(1, pod)
				time.Sleep(20 * time.Second)
				d.end()
				d.config.Policy, n.err = plan.Policy{Document: sign(policytest.ECDSA)}, err
				d.fake.Exit(d.newest(t, "web"), 1)
				d.start()
				time.Sleep(15 * time.Second)
				if got := images(d); slices.Contains(got, first+" running") {
					t.Errorf("registry error %v: a container runs an image of a removed key: %q", err, got)
				}
				d.end()
			}
		}},
		{"a verified image is not verified again", func(t *testing.T) {
			d, n, pod := setUp(t, corev1.PullIfNotPresent, "wait")
			d.start()
			defer func() { d.end() }()
			d.desire(1, pod)
			time.Sleep(20 * time.Second)
			d.fake.Exit(d.newest(t, "web"), 1)
			time.Sleep(time.Minute)
			if n.requests() != 1 {
				t.Errorf("the agent sent %d requests for signatures", n.requests())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { synctest.Test(t, c.f) })
	}
}

// newest returns the name that the engine gives to a pod's newest container.
func (d *device) newest(t *testing.T, pod string) string {
	t.Helper()
	list, err := d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Labels[plan.LabelPodName] == pod && c.State == "running" && c.Labels[plan.LabelContainer] != "" {
			return c.Name
		}
	}
	t.Fatalf("no container of %s runs", pod)
	return ""
}

// A long pull reports its progress, at growing intervals.
func TestALongPullReportsItsProgress(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.OfferImage("large:1", enginetest.Offer{Size: 600 << 20, Delay: 30 * time.Minute, Tells: 800 * time.Millisecond})
		p := makePod("web", "wait")
		p.Spec.Containers[0].Image = "large:1"
		d.desire(1, p)
		time.Sleep(31 * time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
		var got []string
		for _, e := range d.events {
			if e.Reason == "Pulling" {
				got = append(got, e.Message)
			}
		}
		want := []string{`Pulling image "large:1"`}
		for _, at := range []time.Duration{30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second,
			930 * time.Second, 1530 * time.Second} {
			want = append(want, fmt.Sprintf(`Pulling image "large:1": %.1f of 600.0 MiB, 0 of 1 layers, since %s`,
				600*(at-400*time.Millisecond).Minutes()/30, at)) // the latest of the engine
		}
		if !slices.Equal(got, want) {
			t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// If several logins match an image, the agent tries them one after another.
func TestAPullTriesTheNextCredentials(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		const image = "reg.test/team/web:1"
		d.fake.OfferImage(image, enginetest.Offer{Program: toolOrPause,
			Auth: &engine.RegistryAuth{Username: "b", Password: "p", ServerAddress: "reg.test"}})
		pod := makePod("web", "wait")
		pod.Spec.Containers[0].Image = image
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "one"}, {Name: "two"}}
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{pod},
			Secrets: []corev1.Secret{pullSecret("one", "reg.test/team", "a"),
				pullSecret("two", "reg.test", "b")}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		if slices.Contains(d.reasons(), "Failed") {
			t.Errorf("the pull fails: events %q", d.reasons())
		}
	})
}

// pullSecret is a secret with a login for a server.
func pullSecret(name, server, user string) corev1.Secret {
	var s corev1.Secret
	s.Name, s.Namespace = name, "default"
	s.Data = map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil,
		`{"auths":{%q:{"username":%q,"password":"p"}}}`, server, user)}
	return s
}

func TestImagesThatCannotBePulled(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		p.Spec.Containers[0].Image = "registry.test/none:1"
		d.desire(1, p)
		time.Sleep(time.Second)
		waiting := func() string {
			st, _ := d.pod("web")
			if w := st.ContainerStatuses[0].State.Waiting; w != nil {
				return w.Reason
			}
			return "none"
		}
		if w := waiting(); w != "ErrImagePull" {
			t.Errorf("the container waits with %s, want ErrImagePull", w)
		}
		time.Sleep(15 * time.Second)
		if w := waiting(); w != "ImagePullBackOff" {
			t.Errorf("the container waits with %s, want ImagePullBackOff", w)
		}
		d.wantPhase("web", corev1.PodPending, "")
		d.fake.OfferImage("registry.test/none:1", enginetest.Offer{Program: enginetest.ToolProgram})
		time.Sleep(time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

// An image name becomes part of a path of the engine's API, so the agent does not send an invalid
// name.
func TestAnInvalidImageNameIsNotSentToTheEngine(t *testing.T) {
	for _, image := range []string{"../../containers/json", "a/../../b:1", "a:1?all=1", "a b", "A", "a@sha256:00",
		"a/./b", "http://a/b"} {
		bubble(t, func(t *testing.T, d *device) {
			p := makePod("web", "wait")
			p.Spec.Containers[0].Image = image
			d.fake.OfferImage(image, enginetest.Offer{Program: enginetest.ToolProgram})
			d.desire(1, p)
			time.Sleep(time.Minute)
			st, _ := d.pod("web")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "InvalidImageName" {
				t.Errorf("image %q: the container's state is %+v, want InvalidImageName", image, st.ContainerStatuses[0].State)
			}
		})
	}
}

func TestAPresentImageIsUsedWhenTheRegistryFails(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		d.fake.OfferImage(enginetest.ToolImage, enginetest.Offer{Err: errors.New("no route to host")})
		d.desire(1, p)
		time.Sleep(time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		if !slices.Contains(d.reasons(), "PullFailedUsingPresent") {
			t.Errorf("events %q do not say that the image could not be pulled", d.reasons())
		}
	})
}
