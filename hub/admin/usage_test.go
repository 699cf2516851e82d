package admin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/shared/wire"
)

func TestPagesShowWhatIsUsed(t *testing.T) {
	p := admintest.Pod("p", "pi-1", func(p *corev1.Pod) { p.UID = "u1" })
	c := configOf(admintest.New(append(admintest.Sample(), p)...))
	measured := make(chan struct{})
	c.Usage = func(_ string, heard func()) (wire.Usage, bool) {
		select {
		case <-measured:
			return wire.Usage{
				Node: corev1.ResourceList{"cpu": resource.MustParse("1234m"), "memory": resource.MustParse("321Mi")},
				Pods: []wire.PodUsage{{UID: "u1", Containers: []wire.ContainerUsage{{Name: "web", Usage: corev1.ResourceList{"cpu": resource.MustParse("77m"), "memory": resource.MustParse("9Mi")}}}}},
			}, true
		default:
			go func() { <-measured; heard() }()
			return wire.Usage{}, false
		}
	}
	srv := start(t, c)
	pages := map[string]*listener{}
	for path, used := range map[string]string{"/nodes/pi-1": "321 MiB", "/pods/default/p": "9 MiB"} {
		tag := srv.tagOf(t, "viewer", path)
		if _, body := srv.ask(t, "viewer", "GET", path, nil); strings.Contains(body, used) {
			t.Errorf("%s shows an unknown value", path)
		}
		pages[used] = srv.listen(t, "viewer", path+"?shown="+tag)
	}
	close(measured)
	for used, page := range pages {
		page.shows(used)
	}
}
