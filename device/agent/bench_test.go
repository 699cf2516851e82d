package agent

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

// startSignaler signals every container start.
type startSignaler struct {
	engine.Engine
	started chan string
}

func (e startSignaler) Start(ctx context.Context, id string) error {
	err := e.Engine.Start(ctx, id)
	e.started <- id
	return err
}

// The time from a desired state with one more pod to the container's start, including the write to
// the disk and without the engine's time.
func BenchmarkDesiredToStarted(b *testing.B) {
	for _, running := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("running=%d", running), func(b *testing.B) {
			d := newDevice(b)
			tell := startSignaler{d.fake, make(chan string)}
			d.engine = tell
			d.start()
			defer func() {
				go func() {
					for range tell.started {
					}
				}()
				d.end()
			}()
			pods := []corev1.Pod{}
			for i := range running {
				pods = append(pods, makePod(fmt.Sprint("old-", i), "wait"))
			}
			generation := int64(1)
			next := func(n int) {
				d.desire(generation, pods...)
				generation++
				for range n {
					<-tell.started
				}
			}
			next(running)
			i := 0
			for b.Loop() {
				i++
				pods = append(pods[:running], makePod(fmt.Sprint("new-", i), "wait"))
				next(1)
			}
		})
	}
}
