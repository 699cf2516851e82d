package main

import (
	"context"
	"errors"
	"fmt"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// kubeFleet is the loop in the API's words.
type kubeFleet struct{ *control.Loop }

func (f kubeFleet) Do(ctx context.Context, news kube.News) ([]state.Applied, error) {
	done, err := f.Loop.Do(ctx, news)
	if errors.Is(err, store.ErrFull) {
		err = fmt.Errorf("%w: %w", kube.ErrFull, err)
	}
	return done, err
}

// usages are the devices' measurements in the API's words.
type usages struct{ *ask.Desk }

func (u usages) Usage(ctx context.Context, node string) (kube.Usage, error) {
	m, err := u.Desk.Usage(ctx, node)
	if err != nil {
		return kube.Usage{}, err
	}
	out := kube.Usage{Time: m.Time, Window: m.Window.Duration, Node: m.Node, Pods: make([]kube.PodUsage, 0, len(m.Pods))}
	for _, p := range m.Pods {
		pod := kube.PodUsage{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		for _, c := range p.Containers {
			pod.Containers = append(pod.Containers, kube.ContainerUsage{Name: c.Name, Usage: c.Usage})
		}
		out.Pods = append(out.Pods, pod)
	}
	return out, nil
}
