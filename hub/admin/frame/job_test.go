package frame

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func TestMemoryOfActionsIsBounded(t *testing.T) {
	js := newJobs(newLive(nil, time.Now), time.Now)
	defer js.end()
	done := make(chan struct{})
	close(done)
	for i := range 5 {
		js.list = append(js.list, &Job{ID: fmt.Sprint(i), Items: make([]Progress, maxItems), over: done})
	}
	if !js.forget() || len(js.list) != 2 || js.list[0].ID != "3" {
		t.Errorf("%d are kept", len(js.list))
	}
	js.list = append(js.list, &Job{Items: make([]Progress, maxItems), over: make(chan struct{})},
		&Job{Items: make([]Progress, maxItems), over: make(chan struct{})},
		&Job{Items: make([]Progress, 1), over: make(chan struct{})})
	if js.forget() {
		t.Error("more objects are begun than may be kept")
	}
}

func TestOnlySoManyActionsGoOnAtATime(t *testing.T) {
	js := newJobs(newLive(nil, time.Now), time.Now)
	defer js.end()
	endless := &Action{All: func(ctx context.Context, _ *Job) { <-ctx.Done() }}
	for i := range remembered {
		if !js.begin(&Job{act: endless}) {
			t.Fatalf("action %d is refused", i)
		}
	}
	if js.begin(&Job{act: endless}) {
		t.Errorf("action %d is begun", remembered+1)
	}
	first := js.all()[remembered-1]
	first.cancel()
	<-first.over
	if !js.begin(&Job{act: endless}) || js.get(first.ID) != nil {
		t.Error("an ended job still takes a place")
	}
}
