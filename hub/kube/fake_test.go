package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A fakeFleet is a control loop without deciders. It applies changes in memory, and keeps the
// newest changes.
type fakeFleet struct {
	mu      sync.Mutex
	snap    state.Snapshot
	history []state.Applied
	keep    int
	trimmed uint64 // the history no longer has revisions up to this one
	more    chan struct{}
	fail    error     // error of every write, or nil
	before  func()    // called once before the next write
	renewed time.Time // time of every node's last lease

	logs     func(ctx context.Context, pod *corev1.Pod, opts corev1.PodLogOptions, w io.Writer) error
	nodeLogs func(node string, opts corev1.PodLogOptions, w io.Writer) error // replaces the default of NodeLogs
}

var fakeStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

var fakeSettings = admission.Settings{NotReadySeconds: 300, UnreachableSeconds: 300}

func newFake() *fakeFleet {
	f := &fakeFleet{snap: state.Empty("test", fakeStart), keep: 1000, renewed: fakeStart.Add(time.Minute),
		more: make(chan struct{})}
	for _, ns := range []string{"default", "kube-system", "kube-node-lease"} {
		f.put(&corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: ns, CreationTimestamp: metav1.NewTime(fakeStart),
				Labels: map[string]string{"kubernetes.io/metadata.name": ns}},
			Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
			Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		})
	}
	return f
}

func (f *fakeFleet) Snapshot() state.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snap
}

func (f *fakeFleet) Do(_ context.Context, news control.News) ([]state.Applied, error) {
	if hook := f.before; hook != nil {
		f.before = nil
		hook()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	changes, err := news(f.snap, time.Now())
	if err != nil {
		return nil, err
	}
	var done []state.Applied
	f.snap, done = state.Apply(f.snap, changes)
	f.history = append(f.history, done...)
	if n := len(f.history) - f.keep; n > 0 {
		f.trimmed = f.history[n-1].Rev
		f.history = slices.Clone(f.history[n:])
	}
	close(f.more)
	f.more = make(chan struct{})
	return done, nil
}

func (f *fakeFleet) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rev < f.trimmed {
		return nil, nil, errors.New("the history does not reach back that far")
	}
	i, _ := slices.BinarySearchFunc(f.history, rev+1,
		func(a state.Applied, rev uint64) int { return cmp.Compare(a.Rev, rev) })
	return slices.Clone(f.history[i:]), f.more, nil
}

// put stores objects without admission.
func (f *fakeFleet) put(objs ...state.Object) {
	var changes []state.Change
	for _, o := range objs {
		admission.Default(o, fakeSettings) // every stored object has its defaults
		changes = append(changes, state.Put(o, ""))
	}
	f.do(changes...)
}

// do applies all changes at once.
func (f *fakeFleet) do(changes ...state.Change) {
	_, err := f.Do(context.Background(), func(state.Snapshot, time.Time) ([]state.Change, error) { return changes, nil })
	if err != nil {
		panic(err)
	}
}

func (f *fakeFleet) Seen(node string) time.Time {
	if f.Snapshot().Node(node) == nil {
		return time.Time{}
	}
	return f.renewed
}

func (f *fakeFleet) Lease(node string) *coordv1.Lease {
	if f.Snapshot().Node(node) == nil {
		return nil
	}
	at, seconds := metav1.NewMicroTime(f.renewed), int32(40)
	return &coordv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease,
			UID: "lease-" + f.Snapshot().Node(node).UID, CreationTimestamp: metav1.NewTime(fakeStart)},
		Spec: coordv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
}

func (f *fakeFleet) Leases() (list []*coordv1.Lease) {
	for n := range f.Snapshot().Nodes() {
		list = append(list, f.Lease(n.Name))
	}
	return list
}

func (f *fakeFleet) Logs(ctx context.Context, pod *corev1.Pod, opts corev1.PodLogOptions, w io.Writer) error {
	if f.logs != nil {
		return f.logs(ctx, pod, opts, w)
	}
	_, err := fmt.Fprintf(w, "hello from %s of %s\n", opts.Container, pod.Name)
	return err
}

// Usage answers for pi-1. The answer also names a pod of another node.
func (f *fakeFleet) Usage(_ context.Context, node string) (wire.Usage, error) {
	if node != "pi-1" {
		return wire.Usage{}, errors.New("the device of " + node + " is not connected")
	}
	of := func(name string) wire.PodUsage {
		u := wire.PodUsage{Namespace: "default", Name: name,
			Containers: []wire.ContainerUsage{{Name: "main", Usage: corev1.ResourceList{"cpu": quantity.MustParse("5m"),
				"memory": quantity.MustParse("20Mi")}}}}
		if p := f.Snapshot().Pod("default", name); p != nil {
			u.UID = p.UID
		}
		return u
	}
	return wire.Usage{
		Time: fakeStart, Window: metav1.Duration{Duration: 10 * time.Second},
		Node: corev1.ResourceList{"cpu": quantity.MustParse("250m"), "memory": quantity.MustParse("512Mi")},
		Pods: []wire.PodUsage{of("guarded"), of("kiosk-1"), of("nope")},
	}, nil
}

// A fakeAccess accepts the tokens admin, operator and viewer.
type fakeAccess struct{}

func (fakeAccess) Authenticate(r *http.Request) (access.User, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch role := access.Role(token); role {
	case access.Admin, access.Operator, access.Viewer:
		return access.User{Name: token, Role: role}, nil
	}
	return access.User{}, fmt.Errorf("%w: unknown token", access.ErrUnauthenticated)
}

func (fakeAccess) CheckForm(*http.Request, access.User) error { return nil }

func fakeNode(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(fakeStart), Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelArchStable: "arm64",
			corev1.LabelOSStable: "linux", fleet.LabelBoard: "raspberrypi4",
		}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": quantity.MustParse("4"), "memory": quantity.MustParse("4Gi"),
				"pods": quantity.MustParse("110")},
			Allocatable: corev1.ResourceList{"cpu": quantity.MustParse("3800m"), "memory": quantity.MustParse("3700Mi"),
				"pods": quantity.MustParse("110")},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "device is ready",
				LastHeartbeatTime: metav1.NewTime(fakeStart), LastTransitionTime: metav1.NewTime(fakeStart),
			}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"},
				{Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				KernelVersion: "6.6.51", OSImage: "Debian GNU/Linux 12", ContainerRuntimeVersion: "docker://27.3.1",
				KubeletVersion:  "v1.0.0",
				OperatingSystem: "linux", Architecture: "arm64", MachineID: "m-" + name, BootID: "b-" + name,
			},
		},
	}
}

func fakePod(name, node string) *corev1.Pod {
	grace := int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", CreationTimestamp: metav1.NewTime(fakeStart),
			Generation: 1, Labels: map[string]string{"app": "kiosk"}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			DNSPolicy:  corev1.DNSClusterFirst,
			Containers: []corev1.Container{{Name: "main", Image: "kiosk:1", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if node != "" {
		p.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.64.1.2",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Image: "kiosk:1",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(fakeStart)}}}},
		}
	}
	return p
}

func newServer(f *fakeFleet) *Server {
	return New(Config{Fleet: f, Leases: f, Logs: f, Metrics: f, Access: fakeAccess{}, Version: "1.0.0",
		Settings: fakeSettings})
}

// certificate authenticates by the connection's certificate.
type certificate struct{ fakeAccess }

func (certificate) Authenticate(*http.Request) (access.User, error) {
	return access.User{Name: "admin", Role: access.Admin}, nil
}
