package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// FuzzSchedule changes a fleet at random. After each step a full decision changes nothing, every
// node has enough of each resource, and no pod was bound to a node with an untolerated taint.
func FuzzSchedule(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		fl := newFleet(t)
		pick := func(list []string) string { return list[r.IntN(len(list))] }
		nodes, pods := names("n", 5), names("p", 14)
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute,
			corev1.TaintEffectPreferNoSchedule}
		for step := range 60 {
			for range 1 + r.IntN(3) {
				fl.now = fl.now.Add(time.Duration(r.IntN(3)) * time.Second)
				name := pick(nodes)
				n := fl.s.Node(name)
				switch r.IntN(10) {
				case 0:
					if n != nil {
						fl.removeNode(name)
					} else {
						fl.put(node(name, pick([]string{"oslo", "bergen", "voss"})))
					}
				case 1:
					if n != nil {
						fl.editNode(name, func(n *corev1.Node) {
							n.Spec.Taints = nil
							if r.IntN(2) == 0 {
								taint("k", "v", effects[r.IntN(3)])(n)
							}
							n.Status.Allocatable[corev1.ResourceCPU] = list(fmt.Sprint(1+r.IntN(4)), "")[corev1.ResourceCPU]
						})
					}
				default:
					name := pick(pods)
					p := fl.s.Pod("default", name)
					switch {
					case p == nil:
						fl.put(randomPod(r, name, step, nodes))
					case r.IntN(3) == 0:
						fl.removePod(name)
					case r.IntN(3) == 0:
						fl.editPod(name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
					case r.IntN(3) == 0 && p.Spec.NodeName != "":
						fl.editPod(name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: fl.now} })
					case p.Spec.NodeName == "":
						fl.editPod(name, func(p *corev1.Pod) {
							p.Spec.Tolerations, p.Generation = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, p.Generation+1
						})
					}
				}
			}
			before := fl.s
			fl.settle().quiet()
			for n := range fl.s.Nodes() {
				use, was := fl.s.Usage(n.Name), before.Usage(n.Name)
				if q, w := use.Requests[corev1.ResourceCPU],
					was.Requests[corev1.ResourceCPU]; q.Cmp(n.Status.Allocatable[corev1.ResourceCPU]) > 0 && q.Cmp(w) > 0 {
					t.Fatalf("seed %d step %d: the pods of %s request too much", seed, step, n.Name)
				}
			}
			for p := range fl.s.Pods("") {
				if was := before.Pod("default", p.Name); p.Spec.NodeName == "" || was == nil || was.Spec.NodeName != "" {
					continue
				}
				for _, tn := range fl.s.Node(p.Spec.NodeName).Spec.Taints {
					if tn.Effect != corev1.TaintEffectPreferNoSchedule && !state.Tolerates(p.Spec.Tolerations, &tn) {
						t.Fatalf("seed %d: %s is bound to %s, which has the taint %s", seed, p.Name, p.Spec.NodeName, tn.Key)
					}
				}
			}
		}
	})
}

func randomPod(r *rand.Rand, name string, step int, nodes []string) *corev1.Pod {
	p := pod(name, asks(fmt.Sprintf("%dm", 100*r.IntN(25)), ""), priority(int32(r.IntN(3))))
	p.CreationTimestamp = metav1.NewTime(start.Add(time.Duration(step) * time.Second))
	p.Labels["app"] = []string{"kiosk", "db"}[r.IntN(2)]
	switch r.IntN(9) {
	case 8:
		affine(func(a *corev1.Affinity) {
			a.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 5, PodAffinityTerm: termOf("db", corev1.LabelTopologyZone)}}}
		})(p)
	case 0:
		awayFrom("db", corev1.LabelHostname)(p)
	case 1:
		awayFrom("kiosk", corev1.LabelTopologyZone)(p)
	case 2:
		nearTo("db", corev1.LabelTopologyZone)(p)
	case 3:
		toNode(nodes[r.IntN(len(nodes))])(p)
	case 4:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}}
	case 5:
		hostPort("", "TCP", 80)(p)
	case 6:
		owned("rs")(p)
	}
	return p
}

// In a large fleet free space is used at once, and the messages of pending pods follow within
// seconds.
func TestLargeFleet(t *testing.T) {
	f := newFleet(t)
	for _, n := range names("n", 300) {
		f.put(node(n, "oslo", taint("busy", "", corev1.TaintEffectNoSchedule)))
	}
	f.put(pod("a", asks("1", "")), pod("b", asks("8", ""))).settle().quiet()
	f.editNode("n-7", func(n *corev1.Node) { n.Spec.Taints = nil }).settle()
	if f.on("a") != "n-7" {
		t.Fatalf("the pod is on %q: %s", f.on("a"), f.why("a"))
	}
	f.now = f.now.Add(explainInterval)
	f.settle().quiet()
	if want := "0/300 nodes are available: 1 Insufficient cpu, 299 node(s) had untolerated taint {busy: }."; f.why("b") != want {
		t.Errorf("%q, want %q", f.why("b"), want)
	}
}

// FuzzLargeFleet is FuzzSchedule for a large fleet with many pending pods, once postponed work is
// done.
func FuzzLargeFleet(f *testing.F) {
	for seed := range uint64(2) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		fl := newFleet(t)
		nodes := names("n", 205)
		for i, n := range nodes {
			fl.put(node(n, fmt.Sprint("site-", i%4), func(n *corev1.Node) {
				n.Status.Allocatable[corev1.ResourceCPU] = list(fmt.Sprint(r.IntN(2)), "")[corev1.ResourceCPU]
			}))
		}
		for step := range 4 {
			for i := range 40 {
				fl.put(randomPod(r, fmt.Sprintf("p-%d-%d", step, i), step, nodes))
			}
			for range r.IntN(10) {
				name := nodes[r.IntN(len(nodes))]
				for p := range fl.s.PodsOn(name) {
					fl.removePod(p.Name)
					break
				}
				fl.editNode(name, func(n *corev1.Node) {
					n.Spec.Unschedulable = r.IntN(3) == 0
					n.Status.Allocatable[corev1.ResourceCPU] = list(fmt.Sprint(r.IntN(4)), "")[corev1.ResourceCPU]
				})
			}
			fl.rest().quiet()
			fl.now = fl.now.Add(time.Minute)
		}
	})
}

// Work beyond the limits of one pass is done in the next passes, and no pod is skipped.
func TestAPassIsLimited(t *testing.T) {
	f := newFleet(t)
	for _, n := range names("n", 30) {
		f.put(node(n, "oslo"))
	}
	const many = 2*maxPlaced + 300
	for _, p := range names("p", many) {
		f.put(pod(p, owned("rs")))
	}
	f.settle()
	if n := many - waiting(f); n != maxPlaced {
		t.Errorf("the first pass places %d pods, want %d", n, maxPlaced)
	}
	f.rest().quiet()
	if n := waiting(f); n > 0 {
		t.Errorf("%d pods are not placed", n)
	}
	for site, n := range count(f, func(n *corev1.Node) string { return n.Name }) {
		if n < many/30-1 || n > many/30+1 {
			t.Errorf("%s has %d of %d pods", site, n, many)
		}
	}
}

func waiting(f *fleet) (n int) {
	for range f.s.PodsOn("") {
		n++
	}
	return n
}

// In a fleet of thousands a pod checks some hundreds of nodes, from every site. A pod that fits
// only few nodes still finds them.
func TestAPodChecksSomeNodesOfEverySite(t *testing.T) {
	f := newFleet(t)
	for i := range 6_000 {
		f.put(node(fmt.Sprintf("n-%05d", i), fmt.Sprint("site-", i/600), func(n *corev1.Node) {
			if i == 4_321 {
				n.Labels["rare"] = "yes"
			}
		}))
	}
	rare := pod("rare", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"rare": "yes"} })
	never := pod("never", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"rare": "no"} })
	f.put(pod("common"), rare, never)
	p := newPass(f.s, f.now)
	sites := map[string]bool{}
	tried := p.try(f.s.Pod("default", "common"))
	tried.search()
	for _, n := range tried.found {
		sites[n.site] = true
	}
	if p.looks > 2*minCandidates || len(tried.found) < minCandidates || len(sites) != 10 {
		t.Errorf("the pod checks %d times and finds %d nodes of %d sites", p.looks, len(tried.found), len(sites))
	}
	f.settle()
	if f.on("rare") != "n-04321" {
		t.Errorf("rare is on %q", f.on("rare"))
	}
	if want := "0/6000 nodes are available: 6000 node(s) didn't match Pod's node affinity/selector."; f.why("never") != want {
		t.Errorf("%q, want %q", f.why("never"), want)
	}
}

// A report of a node's conditions or of a running pod causes no retry of pending pods.
func TestReportsCauseNoRetry(t *testing.T) {
	f := newFleet(t).put(node("pi", "oslo"), pod("run", onNode("pi")), pod("wait", asks("9", ""))).settle()
	f.editNode("pi", func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			LastHeartbeatTime: metav1.NewTime(start)}}
	})
	f.editPod("run", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	if all := f.touched(); len(all) > 0 {
		t.Errorf("touched: %v", all)
	}
}

func fleetOf(b *testing.B, nodes int) *fleet {
	f := newFleet(b)
	var objects []state.Object
	for i := range nodes {
		n := node(fmt.Sprintf("n-%06d", i), fmt.Sprintf("site-%d", i%(1+nodes/20)))
		n.UID = typesUID("n", i)
		objects = append(objects, n)
		for j := range 2 {
			p := pod(fmt.Sprintf("run-%06d-%d", i, j), asks("100m", "64Mi"), onNode(n.Name))
			p.UID, p.Status.Phase = typesUID("p", 2*i+j), corev1.PodRunning
			objects = append(objects, p)
		}
	}
	f.s = state.Load(f.s, objects, uint64(len(objects)))
	return f
}

var sizes = []int{100, 1_000, 10_000, 100_000}

func BenchmarkPlaceOnePod(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := fleetOf(b, n)
			f.put(pod("new", asks("100m", "64Mi"), owned("rs")))
			subjects := f.touched()
			b.ReportAllocs()
			for b.Loop() {
				if len((Decider{}).Decide(f.s, subjects, f.now).Changes) != 1 {
					b.Fatal("not placed")
				}
			}
		})
	}
}

func BenchmarkDaemonPod(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := fleetOf(b, n)
			f.put(pod("new", asks("100m", "64Mi"), toNode("n-000050")))
			subjects := f.touched()
			b.ReportAllocs()
			for b.Loop() {
				if len((Decider{}).Decide(f.s, subjects, f.now).Changes) != 1 {
					b.Fatal("not placed")
				}
			}
		})
	}
}

// One node gets a taint while 5,000 pods wait for another reason.
func BenchmarkOneNodeChanges(b *testing.B) {
	for _, n := range sizes {
		for _, waiting := range []int{0, 5_000} {
			b.Run(fmt.Sprintf("nodes=%d/waiting=%d", n, waiting), func(b *testing.B) {
				f := fleetOf(b, n)
				var objects []state.Object
				for i := range waiting {
					p := pod(fmt.Sprintf("wait-%d", i), asks("64", ""), owned("rs"))
					p.UID = typesUID("w", i)
					state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}, start)
					objects = append(objects, p)
				}
				f.s = state.Load(f.s, objects, f.s.Revision)
				f.editNode("n-000050", taint("k", "v", corev1.TaintEffectNoSchedule))
				subjects := f.touched()
				b.ReportAllocs()
				for b.Loop() {
					Decider{}.Decide(f.s, subjects, f.now)
				}
			})
		}
	}
}

// A thousand new pods are placed in one pass.
func BenchmarkPlaceThousand(b *testing.B) {
	for _, n := range sizes[:3] {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := fleetOf(b, n)
			for i := range 1000 {
				f.put(pod(fmt.Sprintf("new-%d", i), asks("10m", "1Mi"), owned("rs")))
			}
			subjects := f.touched()
			for b.Loop() {
				Decider{}.Decide(f.s, subjects, f.now)
			}
		})
	}
}

// A hundred new pods fit only if one of two pods of a node is preempted.
func BenchmarkPreemptHundred(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := fleetOf(b, n)
			for i := range 100 {
				f.put(pod(fmt.Sprintf("new-%d", i), asks("3900m", "1Mi"), priority(5), owned("rs")))
			}
			subjects := f.touched()
			for b.Loop() {
				Decider{}.Decide(f.s, subjects, f.now)
			}
		})
	}
}

// A thousand new pods have a spread constraint over the sites.
func BenchmarkSpreadThousand(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			f := fleetOf(b, n)
			for i := range 1000 {
				f.put(pod(fmt.Sprintf("new-%d", i), asks("10m", "1Mi"), app("new"), func(p *corev1.Pod) {
					p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
						TopologyKey:       corev1.LabelTopologyZone,
						WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "new"}}}}
				}))
			}
			subjects := f.touched()
			for b.Loop() {
				Decider{}.Decide(f.s, subjects, f.now)
			}
		})
	}
}

// In a large fleet too, a pod with an affinity is placed soon after the pod that it follows.
func TestInALargeFleetAPodFollowsItsNeighbor(t *testing.T) {
	f := newFleet(t)
	for i, n := range names("n", 300) {
		f.put(node(n, fmt.Sprint("site-", i%3)))
	}
	f.put(pod("web", nearTo("db", corev1.LabelTopologyZone))).settle()
	if f.on("web") != "" {
		t.Fatal("the web pod is placed before its neighbor")
	}
	f.put(pod("db", app("db"))).settle()
	begin := f.now
	f.rest().quiet()
	if f.on("web") == "" || state.SiteOf(f.s.Node(f.on("web"))) != state.SiteOf(f.s.Node(f.on("db"))) ||
		f.now.Sub(begin) > time.Second {
		t.Errorf("web is on %q, db on %q, after %s", f.on("web"), f.on("db"), f.now.Sub(begin))
	}
}
