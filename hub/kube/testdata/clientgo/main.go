// Program clientgo does what controllers and operators do with client-go, and prints its results,
// for the tests of the hub's API. It is a separate module, so that the product does not depend on
// it.
//
//	clientgo informers typed|dynamic|metadata json|protobuf
//	clientgo elect ID
//	clientgo calls
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/pager"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err == nil && len(os.Args) > 1 {
		switch os.Args[1] {
		case "informers":
			err = inform(ctx, config, os.Args[2], os.Args[3])
		case "elect":
			err = elect(ctx, config, os.Args[2])
		case "calls":
			err = calls(ctx, config)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var mu sync.Mutex

// say prints a whole line, from any goroutine.
func say(words ...any) {
	mu.Lock()
	defer mu.Unlock()
	fmt.Println(words...)
}

// inform prints every event of the informers of nodes and pods.
func inform(ctx context.Context, config *rest.Config, how, encoding string) error {
	config.ContentType = runtime.ContentTypeJSON
	if encoding == "protobuf" {
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	watched := map[string]cache.SharedIndexInformer{}
	switch how {
	case "typed":
		f := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
		watched["node"], watched["pod"] = f.Core().V1().Nodes().Informer(), f.Core().V1().Pods().Informer()
	case "dynamic":
		f := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0)
		watched["node"], watched["pod"] = f.ForResource(nodes).Informer(), f.ForResource(pods).Informer()
	case "metadata":
		f := metadatainformer.NewSharedInformerFactory(metadata.NewForConfigOrDie(config), 0)
		watched["node"], watched["pod"] = f.ForResource(nodes).Informer(), f.ForResource(pods).Informer()
	}
	name := func(o any) string {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return err.Error()
		}
		return m.GetName()
	}
	var synced []cache.InformerSynced
	for kind, inf := range watched {
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { say("add", kind, name(o)) },
			UpdateFunc: func(_, o any) { say("update", kind, name(o)) },
			DeleteFunc: func(o any) { say("delete", kind, name(o)) },
		}); err != nil {
			return err
		}
		synced = append(synced, inf.HasSynced)
		go inf.RunWithContext(ctx)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("not synced")
	}
	say("synced")
	<-ctx.Done()
	return nil
}

// elect takes part in a leader election, and releases the lease at the end.
func elect(ctx context.Context, config *rest.Config, id string) error {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, "default", "office", resourcelock.ResourceLockConfig{Identity: id}, config, time.Minute)
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true, LeaseDuration: 2 * time.Minute, RenewDeadline: time.Minute, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say(id, "leads") },
			OnStoppedLeading: func() { say(id, "is out") },
			OnNewLeader:      func(who string) { say(id, "sees the leader", who) },
		},
	})
	return nil
}

// calls makes the calls of controllers, and prints the results.
func calls(ctx context.Context, config *rest.Config) error {
	config.ContentType = runtime.ContentTypeProtobuf
	c := kubernetes.NewForConfigOrDie(config)
	cm, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	say("created", cm.Name != "made-", cm.Data["a"])
	cm.Data["a"] = "c"
	if cm, err = c.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	say("updated", cm.Data["a"])
	d, err := c.AppsV1().Deployments("default").Apply(ctx, appsac.Deployment("applied", "default").WithSpec(appsac.DeploymentSpec().WithReplicas(1).
		WithSelector(metaac.LabelSelector().WithMatchLabels(map[string]string{"app": "applied"})).
		WithTemplate(coreac.PodTemplateSpec().WithLabels(map[string]string{"app": "applied"}).
			WithSpec(coreac.PodSpec().WithContainers(coreac.Container().WithName("main").WithImage("example.org/a:1"))))), metav1.ApplyOptions{FieldManager: "calls"})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	say("applied", d.Name, *d.Spec.Replicas)
	scale, err := c.AppsV1().Deployments("default").GetScale(ctx, "applied", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get scale: %w", err)
	}
	scale.Spec.Replicas = 4
	if scale, err = c.AppsV1().Deployments("default").UpdateScale(ctx, "applied", scale, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update scale: %w", err)
	}
	say("scaled", scale.Spec.Replicas)
	n, err := c.CoreV1().Nodes().Get(ctx, "pi-1", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	n.Status.Phase = corev1.NodeRunning
	if n, err = c.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	say("status", n.Status.Phase)
	pages := 0
	p := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		pages++
		return c.CoreV1().Nodes().List(ctx, o)
	}))
	p.PageSize = 1
	count := 0
	if err := p.EachListItem(ctx, metav1.ListOptions{LabelSelector: labels.Everything().String()}, func(runtime.Object) error { count++; return nil }); err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	say("pages", pages, "nodes", count)
	sites, err := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "flotilla.dev", Version: "v1alpha1", Resource: "sites"}).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list sites: %w", err)
	}
	say("sites", len(sites.Items))
	groups, all, err := c.Discovery().ServerGroupsAndResources()
	if err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	say("discovered", len(groups) > 5, len(all) > 5)
	return c.CoreV1().ConfigMaps("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=" + cm.Name})
}
