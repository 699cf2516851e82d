package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
	api "flotilla.dev/shared/fleet"
)

// prepullingFleet returns a fleet with a Deployment that has a pod on each of two nodes, and whose
// template changes now.
func prepullingFleet(t *testing.T, change func(*appsv1.Deployment)) *fleet {
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	d := deployment(2)
	d.Annotations = map[string]string{api.AnnotationPrepull: "true"}
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &none, MaxUnavailable: &one}
	if change != nil {
		change(d)
	}
	f := newFleet(t)
	nodes(f, 2)
	f.put(d).settle().run("pi-1", "pi-2").settle()
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:2") })
	return f.settle().quiet()
}

// hasImage adds an image to a node's status.
func (f *fleet) hasImage(node, image string) *fleet {
	return f.edit(state.Key{Kind: state.Nodes, Name: node}, func(o state.Object) {
		n := o.(*corev1.Node)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image}})
	}).settle().quiet()
}

// oldPods is the number of pods of the first template that have not been told to stop.
func (f *fleet) oldPods() (n int) {
	for _, pod := range f.livePods() {
		if strings.HasSuffix(pod.Spec.Containers[0].Image, ":1") {
			n++
		}
	}
	return n
}

func (f *fleet) imagesPulled() *appsv1.DeploymentCondition {
	i := slices.IndexFunc(f.deploy().Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == imagesPulled })
	if i < 0 {
		return nil
	}
	return &f.deploy().Status.Conditions[i]
}

func TestNoPodStopsBeforeTheNewImageIsOnItsDevice(t *testing.T) {
	recreate := func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	for _, c := range []struct {
		rule   string
		change func(*appsv1.Deployment)
		left   int // old pods once the images are there
	}{{"a rolling update", nil, 1}, {"Recreate", recreate, 0}} {
		t.Run(c.rule, func(t *testing.T) {
			f := prepullingFleet(t, c.change)
			if f.oldPods() != 2 || f.imagesPulled() == nil || !strings.Contains(f.imagesPulled().Message, "pi-1, pi-2") {
				t.Fatalf("%d old pods, %+v", f.oldPods(), f.imagesPulled())
			}
			if f.hasImage("pi-1", "kiosk:2"); f.oldPods() != 2 || strings.Contains(f.imagesPulled().Message, "pi-1") {
				t.Fatalf("with one image: %d old pods, %+v", f.oldPods(), f.imagesPulled())
			}
			if f.hasImage("pi-2", "kiosk:2"); f.oldPods() != c.left || f.imagesPulled() != nil {
				t.Fatalf("with both images: %d old pods, %+v", f.oldPods(), f.imagesPulled())
			}
			for range 5 {
				f.run("pi-1", "pi-2").settle().quiet()
			}
			if !f.rolledOut() {
				t.Errorf("not rolled out: %+v", f.deploy().Status)
			}
		})
	}
}

func TestARolloutDoesNotWaitForImagesForEver(t *testing.T) {
	f := prepullingFleet(t, nil)
	if f.pass(599 * time.Second); f.oldPods() != 2 {
		t.Fatalf("%d old pods before the deadline", f.oldPods())
	}
	if f.pass(2 * time.Second); f.oldPods() != 1 || f.imagesPulled().Reason != prepullTimedOut {
		t.Fatalf("%d old pods after the deadline, %+v", f.oldPods(), f.imagesPulled())
	}
	f.quiet()
	n := 0
	for _, c := range f.changes {
		if c.Reason == prepullTimedOut {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d events about the deadline", n)
	}
	f.spec(func(s *appsv1.DeploymentSpec) { s.Template = template("kiosk:3") })
	if f.settle().quiet(); f.imagesPulled().Reason != prepulling {
		t.Errorf("another template does not wait anew: %+v", f.imagesPulled())
	}
}

func TestWhatDoesNotWaitForImages(t *testing.T) {
	for rule, change := range map[string]func(*appsv1.Deployment){
		"no annotation":  func(d *appsv1.Deployment) { d.Annotations = nil },
		"another value":  func(d *appsv1.Deployment) { d.Annotations[api.AnnotationPrepull] = "false" },
		"the same image": func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "kiosk:2" },
	} {
		f := prepullingFleet(t, change)
		if rule == "the same image" {
			f.spec(func(s *appsv1.DeploymentSpec) { s.Template.Labels["new"] = "label" }).settle().quiet()
		}
		if f.imagesPulled() != nil {
			t.Errorf("%s: %+v", rule, f.imagesPulled())
		}
	}
	f := prepullingFleet(t, nil)
	for _, node := range []string{"pi-1", "pi-2"} {
		f.edit(state.Key{Kind: state.Nodes, Name: node}, func(o state.Object) {
			o.(*corev1.Node).Status.Conditions[0].Status = corev1.ConditionUnknown
		})
	}
	if f.settle().quiet(); f.imagesPulled() != nil {
		t.Errorf("devices that do not answer: %+v", f.imagesPulled())
	}
}

func TestADaemonSetsPodStopsOnceItsDeviceHasTheImage(t *testing.T) {
	f := newFleet(t)
	nodes(f, 3)
	ds := daemonSet()
	two := intstr.FromInt32(2)
	ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &two
	ds.Spec.Template.Annotations = map[string]string{api.AnnotationPrepull: "true"}
	f.put(ds).settle().run().settle()
	f.edit(probeKey, func(o state.Object) {
		o.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image = "probe:2"
		o.(*appsv1.DaemonSet).Generation++
	}).settle().quiet()
	if f.oldPods() != 3 {
		t.Fatalf("%d old pods", f.oldPods())
	}
	if f.hasImage("pi-2", "probe:2"); f.oldPods() != 2 {
		t.Fatalf("%d old pods with one image", f.oldPods())
	}
	f.run().settle().run().settle().quiet()
	if f.oldPods() != 2 {
		t.Fatalf("%d old pods after one was replaced", f.oldPods())
	}
	if f.pass(prepullTime); f.oldPods() != 0 {
		t.Errorf("%d old pods after the time to wait", f.oldPods())
	}
}
