package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

// Conformance checks the rules of engine.Engine. open returns, for each case, an engine that has
// ToolImage. around runs a case: synctest.Test for the fake, a plain call for real engines. Each
// case removes what it creates.
func Conformance(t *testing.T, open func(t *testing.T) engine.Engine,
	around func(t *testing.T, run func(t *testing.T))) {
	for _, c := range slices.Concat(lifeCases, networkCases, streamCases) {
		t.Run(c.name, func(t *testing.T) {
			around(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				k := &kit{T: t, Engine: open(t), ctx: ctx, label: fmt.Sprintf("flotilla.test/case=%d", time.Now().UnixNano())}
				defer k.clean()
				c.run(k)
			})
		})
	}
}

type conformanceCase struct {
	name string // the rule that the case checks
	run  func(k *kit)
}

// A kit is the fixture of one case.
type kit struct {
	*testing.T
	engine.Engine
	ctx   context.Context
	label string // label of every container of the case
	ids   []string
	nets  []engine.Network
	made  int
}

func (k *kit) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer k.Engine.Close()
	for _, id := range slices.Backward(k.ids) { // newest first: the network's owner is older
		if err := k.Engine.Remove(ctx, id); err != nil {
			k.Errorf("clean up: %v", err)
		}
	}
	for _, n := range k.nets {
		if err := k.Engine.RemoveNetwork(ctx, n); err != nil {
			k.Errorf("clean up: %v", err)
		}
	}
}

// spec describes a container that runs these verbs of the test image.
func (k *kit) spec(verbs string) engine.Spec {
	k.made++
	key, value, _ := strings.Cut(k.label, "=")
	return engine.Spec{Name: fmt.Sprintf("flotilla-test-%s-%d", value, k.made), Image: ToolImage,
		Args: strings.Fields(verbs), Labels: map[string]string{key: value}}
}

func (k *kit) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) mustBe(err, want error) {
	k.Helper()
	if !errors.Is(err, want) {
		k.Fatalf("got error %v, want %v", err, want)
	}
}

func (k *kit) create(s engine.Spec) string {
	k.Helper()
	id, err := k.Create(k.ctx, s)
	k.must(err)
	k.ids = append(k.ids, id)
	return id
}

// start creates and starts a container.
func (k *kit) start(s engine.Spec) string {
	k.Helper()
	id := k.create(s)
	k.must(k.Start(k.ctx, id))
	return id
}

// look returns a container as the engine reports it; State is "" if it does not exist.
func (k *kit) look(id string) engine.Container {
	k.Helper()
	list, err := k.Containers(k.ctx, k.label)
	k.must(err)
	for _, c := range list {
		if c.ID == id {
			return c
		}
	}
	return engine.Container{}
}

// await waits until a container has a state.
func (k *kit) await(id string, want engine.State) engine.Container {
	k.Helper()
	c := engine.Container{}
	k.eventually(func() bool {
		c = k.look(id)
		return c.State == want
	}, func() string { return fmt.Sprintf("the container is %+v, want state %s", c, want) })
	return c
}

// awaitOutput waits until a container has printed something. Only then does its program handle
// signals, which takes a while on a busy machine.
func (k *kit) awaitOutput(id string) {
	k.Helper()
	k.eventually(func() bool {
		out, _ := k.logs(id, everything)
		return out != ""
	}, func() string { return "the container prints nothing" })
}

func (k *kit) eventually(done func() bool, why func() string) {
	k.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			k.Fatal(why())
		}
	}
}

// logs returns the log of a container.
func (k *kit) logs(id string, o engine.LogOptions) (stdout, stderr string) {
	k.Helper()
	var out, problems strings.Builder
	k.must(k.Logs(k.ctx, id, o, &out, &problems))
	return out.String(), problems.String()
}

// output runs a container to its end and returns what it printed.
func (k *kit) output(s engine.Spec) string {
	k.Helper()
	id := k.start(s)
	k.await(id, engine.Exited)
	out, problems := k.logs(id, engine.LogOptions{Tail: -1})
	return out + problems
}

func (k *kit) equal(got, want any) {
	k.Helper()
	if got != want {
		k.Fatalf("got %v, want %v", got, want)
	}
}
