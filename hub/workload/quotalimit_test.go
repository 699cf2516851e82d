package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
)

var quotaKey = state.Key{Kind: state.ResourceQuotas, Namespace: "default", Name: "q"}

// limited returns a fleet with a quota in its namespace and with the API's rules.
func limited(t *testing.T, pairs ...string) *fleet {
	f := newFleet(t)
	f.d.Complete, f.d.Charge = admission.Complete, admission.Charge
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"}}
	q.Spec.Hard = amounts(pairs...)
	q.Status, _ = state.QuotaStatus(f.s, q, f.now)
	nodes(f, 3)
	return f.put(q)
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// raise changes the quota's limits in spec and status.
func (f *fleet) raise(pairs ...string) {
	f.edit(quotaKey, func(o state.Object) {
		q := o.(*corev1.ResourceQuota)
		q.Spec.Hard = amounts(pairs...)
		q.Status, _ = state.QuotaStatus(f.s, q, f.now)
	})
}

// within settles, and compares the quota's status with the objects and the limits.
func (f *fleet) within() *fleet {
	f.t.Helper()
	f.settle().quiet()
	q := f.s.Get(quotaKey).(*corev1.ResourceQuota)
	want, _ := state.QuotaStatus(f.s, q, f.now)
	for name, used := range want.Used {
		says, hard := q.Status.Used[name], q.Spec.Hard[name]
		if says.Cmp(used) != 0 || used.Cmp(hard) > 0 {
			f.t.Errorf("the usage of %s is %s, the status says %s, the limit is %s\n%s", name, used.String(), says.String(),
				hard.String(), strings.Join(f.log, "\n"))
		}
	}
	return f
}

// refusals returns the events about pods and claims that were not created.
func (f *fleet) refusals() (all []string) {
	for _, c := range f.changes {
		if c.Reason == failedCreate {
			all = append(all, fmt.Sprintf("%s %s: %s", c.Source, state.KindOf(c.Object), c.Message))
		}
	}
	return all
}

func (f *fleet) claimNames() (names []string) {
	for c := range state.Each[*corev1.PersistentVolumeClaim](f.s, state.Claims, "default") {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// Each workload gets as many pods as the quota allows. There is one event, retries at growing
// intervals, and the missing pods are created as soon as the quota allows them.
func TestAFullQuotaLimitsEveryWorkload(t *testing.T) {
	three := new(int32(3))
	for name, c := range map[string]struct {
		workload state.Object
		source   string
		wait     time.Duration // until the first pod is created
	}{
		"Deployment":            {deployment(3), "replicaset-controller replicasets", 0},
		"ReplicationController": {&corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default", Generation: 1}, Spec: corev1.ReplicationControllerSpec{Replicas: three, Selector: selector.MatchLabels, Template: new(template("kiosk:1"))}}, "replication-controller replicationcontrollers", 0},
		"DaemonSet":             {daemonSet(), "daemonset-controller daemonsets", 0},
		"StatefulSet":           {aSet(3, parallel), "statefulset-controller statefulsets", 0},
		"Job":                   {aJob(func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = three, three }), "job-controller jobs", 0},
		"Job with indexes":      {aJob(indexedJob(3, 3)), "job-controller jobs", 0},
		"CronJob": {aCronJob("0 */6 * * *", func(s *batchv1.CronJobSpec) {
			s.JobTemplate.Spec.Completions, s.JobTemplate.Spec.Parallelism = three, three
		}), "job-controller jobs", 6 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			f := limited(t, "pods", "1").put(c.workload)
			f.pass(c.wait).within()
			if got := f.pods(); len(got) != 1 {
				t.Fatalf("pods %v, want one", got)
			}
			passes, decided := 0, f.d.Complete
			f.d.Complete = func(o state.Object, s state.Snapshot) error {
				passes++
				return decided(o, s)
			}
			f.pass(2 * time.Hour).within()
			// 10 s, 10 s, 20 s, 40 s … 10 min: about twenty passes with a few checks each.
			if f.d.Complete = decided; passes < 5 || passes > 150 {
				t.Errorf("%d passes in two hours, want about twenty", passes)
			}
			events := f.refusals()
			if len(events) != 1 || !strings.HasPrefix(events[0], c.source+": Error creating: pods ") ||
				!strings.HasSuffix(events[0], "is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1") {
				t.Errorf("the events are %q, want one about the quota", events)
			}
			f.raise("pods", "2")
			if f.pass(10 * time.Minute).within(); len(f.pods()) != 2 {
				t.Errorf("with a quota for two pods there are %v, want 2", f.pods())
			}
			f.raise("pods", "10")
			if f.pass(10 * time.Minute).within(); len(f.pods()) != 3 {
				t.Errorf("with a quota for all pods there are %v, want 3", f.pods())
			}
			for o := range f.s.All(state.KindOf(c.workload), "default") {
				if text := fmt.Sprint(o); strings.Contains(text, "ReplicaFailure") || strings.Contains(text, failedCreate) {
					t.Errorf("a condition still reports the refusal: %s", text)
				}
			}
		})
	}
}

// A StatefulSet's claims are counted and refused before its pods: the pods of refused claims are
// not created.
func TestAFullQuotaLimitsAStatefulSetsClaims(t *testing.T) {
	of := func(size string, change ...func(*appsv1.StatefulSetSpec)) *appsv1.StatefulSet {
		return aSet(3, append(change, func(s *appsv1.StatefulSetSpec) {
			withClaims(keepClaims, keepClaims)(s)
			s.VolumeClaimTemplates[0].Spec.Resources.Requests = amounts("storage", size)
			s.VolumeClaimTemplates[0].Spec.StorageClassName = new("local")
		})...)
	}
	for name, c := range map[string]struct {
		hard, more []string
		set        *appsv1.StatefulSet
		refused    string // the refusal of the second claim
	}{
		"a quota of claims":                 {[]string{"persistentvolumeclaims", "1"}, []string{"persistentvolumeclaims", "3"}, of("1Gi"), "requested: persistentvolumeclaims=1, used: persistentvolumeclaims=1, limited: persistentvolumeclaims=1"},
		"a quota of storage":                {[]string{"requests.storage", "3Gi"}, []string{"requests.storage", "6Gi"}, of("2Gi"), "requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"},
		"a quota of storage, parallel pods": {[]string{"requests.storage", "3Gi"}, []string{"requests.storage", "6Gi"}, of("2Gi", parallel), "requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi"},
		"a quota of a class's claims": {[]string{"local.storageclass.storage.k8s.io/persistentvolumeclaims", "1"}, []string{"local.storageclass.storage.k8s.io/persistentvolumeclaims", "9"}, of("2Gi"),
			"requested: local.storageclass.storage.k8s.io/persistentvolumeclaims=1, used: local.storageclass.storage.k8s.io/persistentvolumeclaims=1, limited: local.storageclass.storage.k8s.io/persistentvolumeclaims=1"},
		"a quota by the name count/": {[]string{"count/persistentvolumeclaims", "1"}, []string{"count/persistentvolumeclaims", "4"}, of("2Gi"), "requested: count/persistentvolumeclaims=1, used: count/persistentvolumeclaims=1, limited: count/persistentvolumeclaims=1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := limited(t, c.hard...).put(c.set)
			serve := func() {
				for range 5 {
					f.within().run("pi-1", "pi-2", "pi-3")
				}
			}
			serve()
			if got := f.claimNames(); !slices.Equal(got, []string{"data-db-0"}) {
				t.Fatalf("the claims are %v, want one", got)
			}
			f.has("db-0")
			f.pass(2 * time.Hour).within()
			want := `statefulset-controller statefulsets: Error creating: persistentvolumeclaims "data-db-1" is forbidden: exceeded quota: q, ` + c.refused
			if got := f.refusals(); len(got) != 1 || got[0] != want {
				t.Errorf("the events are %q, want %q", got, want)
			}
			if got := f.set().Status.Conditions; len(got) != 1 || got[0].Reason != failedCreate {
				t.Errorf("the conditions are %+v, want one for the refusal", got)
			}
			f.raise(c.more...)
			for range 3 {
				f.pass(10 * time.Minute)
				serve()
			}
			if got := f.claimNames(); !slices.Equal(got, []string{"data-db-0", "data-db-1", "data-db-2"}) {
				t.Errorf("the claims are %v, want three", got)
			}
			f.has("db-0", "db-1", "db-2")
			if got := f.set().Status.Conditions; len(got) > 0 {
				t.Errorf("the conditions are %+v, want none", got)
			}
		})
	}
	t.Run("a pod with an existing claim is created", func(t *testing.T) {
		kept := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-db-2", Namespace: "default"}}
		f := limited(t, "persistentvolumeclaims", "2").put(kept)
		f.raise("persistentvolumeclaims", "2")
		f.put(of("1Gi", parallel)).within().has("db-0", "db-2")
	})
	t.Run("a limit range", func(t *testing.T) {
		f := limited(t, "pods", "9").put(&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
				{Type: corev1.LimitTypePersistentVolumeClaim, Max: amounts("storage", "1Gi")}}}})
		f.put(of("2Gi")).within().has()
		if got := f.refusals(); len(got) != 1 || !strings.Contains(got[0],
			"maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi") {
			t.Errorf("the events are %q, want one about the limit range", got)
		}
	})
}

// The refusal of a missing claim of an existing pod also causes an event.
func TestAFullQuotaLimitsTheClaimOfAWaitingPod(t *testing.T) {
	f := limited(t, "persistentvolumeclaims", "1").put(aSet(1, withClaims(keepClaims, keepClaims))).within().has("db-0")
	f.raise("persistentvolumeclaims", "0")
	f.remove(state.Key{Kind: state.Claims, Namespace: "default", Name: "data-db-0"})
	f.raise("persistentvolumeclaims", "0")
	f.within().has("db-0")
	if len(f.claimNames()) > 0 || len(f.refusals()) != 1 {
		t.Errorf("claims %v, events %q; want none and one", f.claimNames(), f.refusals())
	}
	f.raise("persistentvolumeclaims", "1")
	if f.pass(10 * time.Minute).within(); len(f.claimNames()) != 1 {
		t.Errorf("the claims are %v, want one", f.claimNames())
	}
}

// A quota with scopes counts exactly the pods that are in all of its scopes.
func TestScopesOfAQuotaMatchWorkloadsPods(t *testing.T) {
	selects := func(op corev1.ScopeSelectorOperator, values ...string) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values}}}
		}
	}
	scopes := func(of ...corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) { q.Spec.Scopes = of }
	}
	ends := func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = new(int64(60)) }
	asks := func(s *corev1.PodSpec) { s.Containers[0].Resources.Requests = amounts("cpu", "100m") }
	high := func(s *corev1.PodSpec) { s.PriorityClassName, s.Priority = "high", new(int32(1000)) }
	for name, c := range map[string]struct {
		quota func(*corev1.ResourceQuota)
		pod   func(*corev1.PodSpec)
		held  bool
	}{
		"Terminating, of a Job with a deadline":       {scopes(corev1.ResourceQuotaScopeTerminating), ends, true},
		"Terminating, of a Job without a deadline":    {scopes(corev1.ResourceQuotaScopeTerminating), nil, false},
		"NotTerminating, of a Job without a deadline": {scopes(corev1.ResourceQuotaScopeNotTerminating), nil, true},
		"NotTerminating, of a Job with a deadline":    {scopes(corev1.ResourceQuotaScopeNotTerminating), ends, false},
		"BestEffort":                                          {scopes(corev1.ResourceQuotaScopeBestEffort), nil, true},
		"BestEffort, with requests":                           {scopes(corev1.ResourceQuotaScopeBestEffort), asks, false},
		"NotBestEffort":                                       {scopes(corev1.ResourceQuotaScopeNotBestEffort), asks, true},
		"NotBestEffort, without requests":                     {scopes(corev1.ResourceQuotaScopeNotBestEffort), nil, false},
		"two scopes, one of which has the pod":                {scopes(corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating), ends, false},
		"PriorityClass in a list with the pod's class":        {selects(corev1.ScopeSelectorOpIn, "low", "high"), high, true},
		"PriorityClass in a list without the pod's class":     {selects(corev1.ScopeSelectorOpIn, "low"), high, false},
		"PriorityClass not in a list without the pod's class": {selects(corev1.ScopeSelectorOpNotIn, "low"), high, true},
		"PriorityClass not in a list with the pod's class":    {selects(corev1.ScopeSelectorOpNotIn, "high"), high, false},
		"PriorityClass exists":                                {selects(corev1.ScopeSelectorOpExists), high, true},
		"PriorityClass exists, without a class":               {selects(corev1.ScopeSelectorOpExists), nil, false},
		"PriorityClass does not exist":                        {selects(corev1.ScopeSelectorOpDoesNotExist), nil, true},
		"PriorityClass does not exist, with a class":          {selects(corev1.ScopeSelectorOpDoesNotExist), high, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := limited(t, "pods", "1")
			f.edit(quotaKey, func(o state.Object) { c.quota(o.(*corev1.ResourceQuota)) })
			f.put(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000})
			f.put(aJob(func(s *batchv1.JobSpec) {
				s.Completions, s.Parallelism = new(int32(3)), new(int32(3))
				if c.pod != nil {
					c.pod(&s.Template.Spec)
				}
			}))
			want := 3
			if c.held {
				want = 1
			}
			if got := f.within().pods(); len(got) != want || (len(f.refusals()) > 0) != c.held {
				t.Errorf("pods %v, want %d; events %q", got, want, f.refusals())
			}
		})
	}
}

// A claim that gets its class later counts for the class from then on.
func TestAClaimsClassIsCounted(t *testing.T) {
	f := limited(t, "local.storageclass.storage.k8s.io/requests.storage", "9Gi")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"}}
	claim.Spec.Resources.Requests = amounts("storage", "2Gi")
	for _, want := range []string{"0", "2Gi"} {
		f.put(claim)
		f.apply(Quotas{}.Decide(f.s, state.Touched(Quotas{}.Touches, f.recent), f.now).Changes...)
		f.recent = nil
		used := f.s.Get(quotaKey).(*corev1.ResourceQuota).Status.Used["local.storageclass.storage.k8s.io/requests.storage"]
		if used.String() != want {
			t.Errorf("the usage is %s, want %s", used.String(), want)
		}
		claim = claim.DeepCopy()
		claim.Spec.StorageClassName = new("local")
	}
}

// A quota of Jobs also limits CronJobs. A refused Job gets one event. It starts once the quota
// allows it, unless that is too late.
func TestAQuotaOfJobsLimitsCronJobs(t *testing.T) {
	const jobs = "count/jobs.batch"
	for _, c := range []struct {
		name   string
		edit   func(*batchv1.CronJobSpec)
		does   func(*fleet)
		want   string
		events int
	}{
		{"no more Jobs than the quota allows", nil, func(f *fleet) { f.pass(45 * time.Minute) }, "[12:10 12:20]", 1},
		{"the newest missed Job once the quota allows it", nil, func(f *fleet) {
			f.pass(45 * time.Minute)
			f.raise(jobs, "3")
			f.pass(6 * time.Minute) // the last retries are ten minutes apart
		}, "[12:10 12:20 12:50]", 1},
		{"none after its starting deadline", func(s *batchv1.CronJobSpec) { s.StartingDeadlineSeconds = new(int64(60)) }, func(f *fleet) {
			f.pass(33 * time.Minute)
			f.raise(jobs, "3")
			f.pass(5 * time.Minute)
		}, "[12:10 12:20]", 1},
		{"a Job that replaces another", func(s *batchv1.CronJobSpec) { s.ConcurrencyPolicy = batchv1.ReplaceConcurrent }, func(f *fleet) {
			f.raise(jobs, "1")
			f.pass(21 * time.Minute)
			f.raise(jobs, "1")
			f.pass(time.Minute)
		}, "[12:20]", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cron := aCronJob("*/10 * * * *")
			if c.edit != nil {
				c.edit(&cron.Spec)
			}
			f := limited(t, jobs, "2").put(cron)
			c.does(f)
			f.settle().quiet()
			if got := fmt.Sprint(f.jobs()); got != c.want {
				t.Errorf("jobs %s, want %s", got, c.want)
			}
			events := f.refusals()
			if len(events) != c.events || !strings.HasPrefix(events[0], "cronjob-controller ") || !strings.Contains(events[0],
				`Error creating job: jobs.batch "nightly-`) ||
				!strings.Contains(events[0], `is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=`) {
				t.Errorf("the events are %q, want %d about the quota", events, c.events)
			}
		})
	}
}

// A quota of ReplicaSets or ControllerRevisions limits rollouts. A template whose revision is
// refused is not rolled out, existing pods stay, and the rollout continues once the quota allows
// it.
func TestAQuotaOfRevisionsLimitsRollouts(t *testing.T) {
	const sets, revisions = "count/replicasets.apps", "count/controllerrevisions.apps"
	deploy := func(edit func(*appsv1.DeploymentSpec)) state.Object {
		d := deployment(2)
		if edit != nil {
			edit(&d.Spec)
		}
		return d
	}
	for name, c := range map[string]struct {
		workload state.Object
		counted  corev1.ResourceName
		source   string
		why      string
	}{
		"Deployment": {deploy(nil), sets, "deployment-controller ReplicaSetCreateError", `Failed to create new replica set "kiosk-`},
		"Deployment with the strategy Recreate": {deploy(func(s *appsv1.DeploymentSpec) {
			s.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		}), sets, "deployment-controller ReplicaSetCreateError", `Failed to create new replica set "kiosk-`},
		"Deployment without a deadline": {deploy(func(s *appsv1.DeploymentSpec) { s.ProgressDeadlineSeconds = nil }), sets,
			"deployment-controller ReplicaSetCreateError", `Failed to create new replica set "kiosk-`},
		"DaemonSet":   {daemonSet(), revisions, "daemonset-controller FailedCreate", `Error creating: controllerrevisions.apps "`},
		"StatefulSet": {aSet(2, parallel), revisions, "statefulset-controller FailedCreate", `Error creating: controllerrevisions.apps "db-`},
	} {
		t.Run(name, func(t *testing.T) {
			f := limited(t, string(c.counted), "1")
			key := state.KeyOf(c.workload)
			retemplate := func(image string) {
				f.edit(key, func(o state.Object) {
					o.SetGeneration(o.GetGeneration() + 1)
					key.Kind.Row().Template(o).Spec.Containers[0].Image = image
				})
			}
			c.workload.SetGeneration(1)
			f.put(c.workload).within()
			if len(f.pods()) == 0 {
				t.Fatal("there are no pods of the first version")
			}
			for range 3 {
				f.run("pi-1", "pi-2", "pi-3").within()
			}
			f.changes = nil
			before := fmt.Sprint(f.pods())
			retemplate("kiosk:2")
			f.pass(time.Minute).run("pi-1", "pi-2", "pi-3").pass(2 * time.Hour).within()
			if got := fmt.Sprint(f.pods()); !strings.HasSuffix(name, "Recreate") && got != before {
				t.Errorf("pods %v, want %v", got, before)
			}
			var events []string
			for _, x := range f.changes {
				if x.Warn {
					events = append(events, fmt.Sprintf("%s %s: %s", x.Source, x.Reason, x.Message))
				}
			}
			if len(events) != 1 || !strings.HasPrefix(events[0], c.source+": "+c.why) ||
				!strings.Contains(events[0], fmt.Sprintf("is forbidden: exceeded quota: q, requested: %s=1, used: %s=1, limited: %s=1", c.counted, c.counted, c.counted)) {
				t.Errorf("the events are %q, want one about the quota", events)
			}
			f.raise(string(c.counted), "2")
			f.pass(10 * time.Minute)
			for range 10 {
				f.run("pi-1", "pi-2", "pi-3").pass(time.Minute).within()
			}
			live := f.livePods()
			if len(live) < 2 {
				t.Errorf("the pods are %v, want at least 2 live ones", f.pods())
			}
			for _, pod := range live {
				if got := pod.Spec.Containers[0].Image; got != "kiosk:2" {
					t.Errorf("%s runs %s, want kiosk:2", pod.Name, got)
				}
			}
			for o := range f.s.All(key.Kind, "default") {
				if text := fmt.Sprint(o); strings.Contains(text, "ReplicaFailure") || strings.Contains(text, "CreateError") {
					t.Errorf("a condition still reports the refusal: %s", text)
				}
			}
		})
	}
}

// A node that joined while a DaemonSet's revision was refused gets its pod as soon as the quota
// allows the revision.
func TestANodeThatJoinedBeforeAQuotaAllowsTheRevisionGetsItsPod(t *testing.T) {
	f := limited(t, "count/controllerrevisions.apps", "1").put(daemonSet()).settle().run()
	f.edit(state.KeyOf(f.daemonSet()), func(o state.Object) {
		o.SetGeneration(o.GetGeneration() + 1)
		o.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image = "kiosk:2"
	})
	f.pass(time.Minute).put(node("pi-4")).settle()
	if got := f.pods(); len(got) != 3 {
		t.Fatalf("pods %v, want the earlier pods", got)
	}
	f.raise("count/controllerrevisions.apps", "2")
	f.edit(podKey(f.pods()[0]), func(o state.Object) { o.(*corev1.Pod).Status.Conditions = nil }).settle()
	if pods := f.s.Len(state.Pods); f.s.Len(state.ControllerRevisions) != 2 || pods != 4 {
		t.Errorf("%d revisions, want 2; pods %v, want 4", f.s.Len(state.ControllerRevisions), f.pods())
	}
	f.quiet()
}

// In a large fleet the nodes of a DaemonSet with a refused revision are checked only at intervals,
// not at each change of its pods.
func TestADaemonSetWithARefusedRevisionIsCheckedAtIntervals(t *testing.T) {
	f := limited(t, "count/controllerrevisions.apps", "1")
	nodes(f, state.LargeSet+10)
	f.put(daemonSet()).pass(5 * time.Second).run().pass(5 * time.Second)
	f.edit(state.KeyOf(f.daemonSet()), func(o state.Object) {
		o.SetGeneration(o.GetGeneration() + 1)
		o.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image = "kiosk:2"
	})
	f.pass(5 * time.Second)
	was := f.daemonSet()
	if len(f.refusals()) != 1 || was.Status.NumberReady != state.LargeSet+10 {
		t.Fatalf("the events are %q, want one; the status is %+v", f.refusals(), was.Status)
	}
	for _, name := range f.pods()[:5] {
		f.edit(podKey(name), func(o state.Object) { o.(*corev1.Pod).Status.Conditions = nil }).settle()
	}
	if f.daemonSet() != was {
		t.Errorf("the nodes are checked at once: %+v", f.daemonSet().Status)
	}
	if f.pass(5 * time.Second); f.daemonSet().Status.NumberReady != state.LargeSet+5 {
		t.Errorf("the status is not updated at the interval: %+v", f.daemonSet().Status)
	}
}
