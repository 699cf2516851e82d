package admin

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
		js.list = append(js.list, &job{ID: fmt.Sprint(i), Items: make([]progress, maxItems), over: done})
	}
	if !js.forget() || len(js.list) != 2 || js.list[0].ID != "3" {
		t.Errorf("%d are kept", len(js.list))
	}
	js.list = append(js.list, &job{Items: make([]progress, maxItems), over: make(chan struct{})}, &job{Items: make([]progress, maxItems), over: make(chan struct{})}, &job{Items: make([]progress, 1), over: make(chan struct{})})
	if js.forget() {
		t.Error("more is begun than is to be kept")
	}
}

func TestOnlySoManyActionsGoOnAtATime(t *testing.T) {
	js := newJobs(newLive(nil, time.Now), time.Now)
	defer js.end()
	endless := &action{all: func(ctx context.Context, _ *job) { <-ctx.Done() }}
	for i := range remembered {
		if !js.begin(&job{act: endless}) {
			t.Fatalf("action %d is refused", i)
		}
	}
	if js.begin(&job{act: endless}) {
		t.Errorf("action %d is begun", remembered+1)
	}
	first := js.all()[remembered-1]
	first.cancel()
	<-first.over
	if !js.begin(&job{act: endless}) || js.get(first.ID) != nil {
		t.Error("one that has ended keeps its place")
	}
}
