package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// One pod exceeds the limit of its volume, one that of its root file system, and one stays within
// its limits.
func TestRealEngineEvictsPodsOverTheirStorageLimit(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		big := strings.Repeat("x", 100<<10)
		pod := func(name, path, limit, volume string) corev1.Pod {
			p := storagePod(volume, limit)
			p.Name, p.UID = name, types.UID("uid-"+name+"-"+d.node)
			c := &p.Spec.Containers[0]
			c.Image, c.Args = makePod("", "").Spec.Containers[0].Image, []string{"write", path, big, "then", "wait"}
			return p
		}
		pods := []corev1.Pod{pod("fills", "/data/x", "", "64Ki"), pod("grows", "/x", "64Ki", ""),
			pod("keeps", "/x", "1Mi", "1Mi")}
		pods[2].Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Ki")}
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: pods}); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"fills": `Usage of EmptyDir volume "data" exceeds the limit "64Ki". `,
			"grows": "Pod ephemeral local storage usage exceeds the total limit of containers 64Ki. "} {
			d.await(name+" is evicted", func() bool {
				st := d.pod(name)
				return st != nil &&
					st.Phase == corev1.PodFailed
			})
			if st := d.pod(name); st.Reason != "Evicted" || st.Message != want {
				t.Errorf("%s: %s: %q, want Evicted: %q", name, st.Reason, st.Message, want)
			}
		}
		if st := d.pod("keeps"); st.Phase != corev1.PodRunning {
			t.Errorf("the pod within its limits is %s %s %s", st.Phase, st.Reason, st.Message)
		}
	})
}
