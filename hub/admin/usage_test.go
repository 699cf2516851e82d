package admin

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestADeviceIsMeasuredWhileSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, told atomic.Int32
		var deaf atomic.Bool
		g := newGauges(func(context.Context, string) (Usage, error) {
			n := asked.Add(1)
			time.Sleep(2 * time.Second)
			if deaf.Load() {
				return Usage{}, errors.New("no answer")
			}
			return Usage{Node: corev1.ResourceList{"pods": *resource.NewQuantity(int64(n), resource.DecimalSI)}}, nil
		}, func(string) { told.Add(1) })
		look := func(wantNo int64, wantAsked, wantTold int32, when string) {
			t.Helper()
			u, ok := g.of("pi-1", time.Now())
			synctest.Wait()
			if n := u.Node.Pods().Value(); ok != (wantNo > 0) || ok && n != wantNo || asked.Load() != wantAsked || told.Load() != wantTold {
				t.Errorf("%s: shows measurement %d (%v) of %d, told %d times; want %d of %d, %d times", when, n, ok, asked.Load(), told.Load(), wantNo, wantAsked, wantTold)
			}
		}
		look(0, 1, 0, "at first")
		look(0, 1, 0, "while it measures")
		time.Sleep(3 * time.Second)
		look(1, 1, 1, "when it has")
		time.Sleep(measureAgain)
		look(1, 2, 1, "later, while it measures again")
		time.Sleep(3 * time.Second)
		look(2, 2, 2, "when it has again")
		deaf.Store(true)
		time.Sleep(measureAgain)
		look(2, 3, 2, "when it does not answer")
		time.Sleep(measured)
		look(0, 4, 2, "when it has not answered for long")
		time.Sleep(2 * measured)
		g.of("pi-2", time.Now())
		synctest.Wait()
		if len(g.byNode) != 1 {
			t.Errorf("%d nodes are kept, of which one is looked at", len(g.byNode))
		}
		time.Sleep(time.Minute)
	})
}

func TestPagesShowWhatIsUsed(t *testing.T) {
	p := testPod("p", "pi-1", func(p *corev1.Pod) { p.UID = "u1" })
	c := configOf(newMemory(append(sample(), p)...))
	measure := make(chan struct{})
	c.Usage = func(context.Context, string) (Usage, error) {
		<-measure
		return Usage{
			Node:       corev1.ResourceList{"cpu": resource.MustParse("1234m"), "memory": resource.MustParse("321Mi")},
			Containers: map[ContainerOf]corev1.ResourceList{{"u1", "web"}: {"cpu": resource.MustParse("77m"), "memory": resource.MustParse("9Mi")}},
		}, nil
	}
	srv := start(t, c)
	pages := map[string]*listener{}
	for path, used := range map[string]string{"/nodes/pi-1": "321 MiB", "/pods/default/p": "9.0 MiB"} {
		tag := srv.tagOf(t, "viewer", path)
		if _, body := srv.ask(t, "viewer", "GET", path, nil); strings.Contains(body, used) {
			t.Errorf("%s shows what is not known yet", path)
		}
		pages[used] = srv.listen(t, "viewer", path+"?shown="+tag)
	}
	close(measure)
	for used, page := range pages {
		page.shows(used)
	}
}
