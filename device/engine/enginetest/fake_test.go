package enginetest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

func TestTheFakeConforms(t *testing.T) {
	enginetest.Conformance(t, func(*testing.T) engine.Engine {
		fake := enginetest.New()
		fake.AddTool()
		return fake
	}, synctest.Test)
}

// bubble runs a test in fake time on an engine whose image app:1 behaves as play describes.
func bubble(t *testing.T, play enginetest.Play, test func(t *testing.T, fake *enginetest.Fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fake := enginetest.New()
		fake.AddImage("app:1", 1<<20, func(engine.Spec, int) enginetest.Play { return play })
		test(t, fake)
	})
}

func start(t *testing.T, fake *enginetest.Fake, s engine.Spec) (id string) {
	t.Helper()
	s.Image = "app:1"
	s.Labels = map[string]string{"ours": ""}
	id, err := fake.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

func only(t *testing.T, fake *enginetest.Fake) engine.Container {
	t.Helper()
	list, err := fake.Containers(t.Context(), "ours")
	if err != nil || len(list) != 1 {
		t.Fatalf("the containers are %v, %v; want one", list, err)
	}
	return list[0]
}

func TestContainersEndWithTheirPlay(t *testing.T) {
	bubble(t, enginetest.Play{Exits: true, ExitAfter: time.Hour, ExitCode: 3, OOM: true},
		func(t *testing.T, fake *enginetest.Fake) {
			begin := time.Now()
			start(t, fake, engine.Spec{Name: "a"})
			events := 0
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			defer cancel()
			if err := fake.Events(ctx, "ours", func() { events++ }); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if events != 2 { // one event for the start, one for the end
				t.Errorf("got %d events, want one for the start and one for the end", events)
			}
			if c := only(t, fake); c.State != engine.Exited || c.ExitCode != 3 || !c.OOMKilled ||
				!c.FinishedAt.Equal(begin.Add(time.Hour)) {
				t.Errorf("the container is %+v, want it OOM-killed after an hour with exit code 3", c)
			}
		})
}

func TestStopping(t *testing.T) {
	for _, c := range []struct {
		name  string
		play  enginetest.Play
		grace time.Duration
		takes time.Duration
		code  int
	}{
		{"a program that handles the signal ends at once", enginetest.Play{StopCode: 2}, 30 * time.Second, 0, 2},
		{"a slow program may use the grace period", enginetest.Play{StopTakes: 5 * time.Second}, 30 * time.Second, 5 * time.Second, 0},
		{"a program beyond the grace period is killed", enginetest.Play{StopTakes: time.Minute}, 30 * time.Second, 30 * time.Second, 137},
		{"the grace period is rounded up to seconds, as in the API", enginetest.Play{StopTakes: time.Minute}, 1200 * time.Millisecond, 2 * time.Second, 137},
		{"a program that ends by itself during the grace period keeps its exit code", enginetest.Play{StopTakes: time.Minute, Exits: true, ExitAfter: time.Second, ExitCode: 4}, 30 * time.Second, time.Second, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, c.play, func(t *testing.T, fake *enginetest.Fake) {
				id := start(t, fake, engine.Spec{Name: "a"})
				begin := time.Now()
				if err := fake.Stop(t.Context(), id, c.grace); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took != c.takes {
					t.Errorf("the call took %s, want %s", took, c.takes)
				}
				if got := only(t, fake); got.State != engine.Exited || got.ExitCode != c.code {
					t.Errorf("the container is %+v, want it exited with %d", got, c.code)
				}
			})
		})
	}
}

func TestAStopContinuesWhenItsCallerGivesUp(t *testing.T) {
	bubble(t, enginetest.Play{StopTakes: time.Hour}, func(t *testing.T, fake *enginetest.Fake) {
		id := start(t, fake, engine.Spec{Name: "a"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := fake.Stop(ctx, id, 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if c := only(t, fake); c.State != engine.Running {
			t.Errorf("before the end of its stop the container is %s, want running", c.State)
		}
		time.Sleep(9 * time.Second)
		if c := only(t, fake); c.ExitCode != 137 {
			t.Errorf("after its grace period the container is %+v, want exit code 137", c)
		}
	})
}

func TestPulling(t *testing.T) {
	secret := &engine.RegistryAuth{Username: "device", Password: "secret"}
	broken := errors.New("no space left on device")
	for _, c := range []struct {
		name  string
		offer enginetest.Offer
		auth  *engine.RegistryAuth
		want  error // nil: the pull succeeds
		says  string
		takes time.Duration
	}{
		{"a pull takes the image's delay", enginetest.Offer{Delay: time.Minute}, nil, nil, "", time.Minute},
		{"a failed pull takes the image's delay too", enginetest.Offer{Delay: time.Minute, Err: broken}, nil, broken, "no space", time.Minute},
		{"credentials are checked", enginetest.Offer{Auth: secret}, secret, nil, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, enginetest.Play{}, func(t *testing.T, fake *enginetest.Fake) {
				fake.OfferImage("new:1", c.offer)
				begin := time.Now()
				err := fake.Pull(t.Context(), "new:1", c.auth, nil)
				if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("got error %v", err)
				}
				if took := time.Since(begin); took != c.takes {
					t.Errorf("the call took %s, want %s", took, c.takes)
				}
				if _, ok, _ := fake.HasImage(t.Context(), "new:1"); ok != (c.want == nil) {
					t.Errorf("after the pull the image exists: %v, want the opposite", ok)
				}
			})
		})
	}
	bubble(t, enginetest.Play{}, func(t *testing.T, fake *enginetest.Fake) {
		fake.OfferImage("new:1", enginetest.Offer{Auth: secret})
		if err := fake.Pull(t.Context(), "new:1", nil, nil); err == nil || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("a pull without credentials: %v, want an error about credentials", err)
		}
		if err := fake.Pull(t.Context(), "other:1", nil, nil); !errors.Is(err, engine.ErrNotFound) {
			t.Errorf("a pull of an image that is not offered: %v, want ErrNotFound", err)
		}
	})
}

func TestAnOutageEndsCallsButNotContainers(t *testing.T) {
	bubble(
		t,
		enginetest.Play{
			StopTakes: time.Hour,
			Exec:      func([]string) enginetest.ExecResult { return enginetest.ExecResult{After: time.Hour} },
		},
		func(t *testing.T, fake *enginetest.Fake) {
			id := start(t, fake, engine.Spec{Name: "a"})
			fake.OfferImage("slow:1", enginetest.Offer{Delay: time.Hour})
			ctx := t.Context()
			ends := make(chan error)
			calls := []func() error{
				func() error { return fake.Events(ctx, "ours", func() {}) },
				func() error { return fake.Logs(ctx, id, engine.LogOptions{Follow: true}, io.Discard, io.Discard) },
				func() error { return fake.Pull(ctx, "slow:1", nil, nil) },
			}
			for _, call := range calls {
				go func() { ends <- call() }()
			}
			synctest.Wait()
			fake.SetDown(true)
			for range calls {
				if err := <-ends; !errors.Is(err, engine.ErrUnavailable) {
					t.Error(err)
				}
			}
			if _, err := fake.Info(ctx); !errors.Is(err, engine.ErrUnavailable) {
				t.Error(err)
			}
			fake.SetDown(false)
			if c := only(t, fake); c.State != engine.Running {
				t.Errorf("after the outage the container is %s, want running", c.State)
			}
		},
	)
}

func TestFaultsOfContainers(t *testing.T) {
	bubble(t, enginetest.Play{}, func(t *testing.T, fake *enginetest.Fake) {
		ctx := t.Context()
		id := start(t, fake, engine.Spec{Name: "a"})
		if !fake.OOMKill("a") || fake.OOMKill("nobody") {
			t.Error("OOMKill does not report whether it found the container")
		}
		if c := only(t, fake); !c.OOMKilled || c.ExitCode != 137 {
			t.Errorf("after OOMKill the container is %+v", c)
		}
		if err := fake.Start(ctx, id); err != nil {
			t.Fatal(err)
		}
		if c := only(t, fake); c.OOMKilled || c.ExitCode != 0 {
			t.Errorf("after a new start the container is %+v", c)
		}
		fake.PowerCut()
		if c := only(t, fake); c.State != engine.Exited || c.ExitCode != 255 {
			t.Errorf("after a power cut the container is %+v", c)
		}
		fake.HalfRemove("a")
		if err := fake.Start(ctx, id); err == nil || only(t, fake).State != engine.Dead {
			t.Errorf("starting a half-removed container: %v, want an error and state dead", err)
		}
		fake.Lose("a")
		if list, _ := fake.Containers(ctx, "ours"); len(list) != 0 {
			t.Errorf("a lost container is still listed: %v", list)
		}
		oops := errors.New("oops")
		fake.Fail("Info", oops)
		if _, err := fake.Info(ctx); !errors.Is(err, oops) {
			t.Error(err)
		}
		if _, err := fake.Info(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestUsageGrowsWithTime(t *testing.T) {
	bubble(t, enginetest.Play{MilliCPU: 500, MemoryBytes: 5}, func(t *testing.T, fake *enginetest.Fake) {
		id := start(t, fake, engine.Spec{Name: "a"})
		time.Sleep(10 * time.Second)
		fake.Use("a", 1000, 7)
		time.Sleep(10 * time.Second)
		if u, err := fake.Usage(t.Context(), id); err != nil || u != (engine.Usage{CPUNanos: 15e9, MemoryBytes: 7}) {
			t.Errorf("the container's usage is %+v, %v; want 15 s and 7 bytes", u, err)
		}
	})
}

func TestRecordedCalls(t *testing.T) {
	bubble(t, enginetest.Play{}, func(t *testing.T, fake *enginetest.Fake) {
		fake.Record()
		fake.SetLatency(time.Second)
		begin := time.Now()
		id := start(t, fake, engine.Spec{Name: "a"})
		_ = fake.Stop(t.Context(), id, 30*time.Second)
		_ = fake.Remove(t.Context(), id)
		_ = fake.RemoveImage(t.Context(), "app:1")
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("the call took %s, want 5s", took)
		}
		if got := fake.Calls(); !slices.Equal(got, []string{"Create a", "Start a", "Stop a 30s", "Remove a",
			"RemoveImage app:1"}) {
			t.Errorf("the recorded calls are %q", got)
		}
	})
}

func TestAFollowedLogIsCompleteWithoutRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := enginetest.New()
		fake.AddImage("app:1", 1, func(_ engine.Spec, run int) enginetest.Play {
			return enginetest.Play{
				Lines: []enginetest.Line{{Text: fmt.Sprint("run ", run)}, {After: time.Second, Text: fmt.Sprint("still ", run)}},
			}
		})
		id := start(t, fake, engine.Spec{Name: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		end := make(chan error)
		go func() { end <- fake.Logs(ctx, id, engine.LogOptions{Tail: -1, Follow: true}, &out, io.Discard) }()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
		for range 8 {
			fake.Exit("a", 1)
			if err := fake.Start(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if out.String() != "run 0\nstill 0\n" {
			t.Errorf("the follower got %q, want only run 0", out.String())
		}
		out.Reset()
		if err := fake.Logs(t.Context(), id, engine.LogOptions{Tail: 2}, &out, io.Discard); err != nil ||
			out.String() != "run 7\nrun 8\n" {
			t.Errorf("the last lines are %q, %v; want run 7 and run 8", out.String(), err)
		}
	})
}

func TestAThousandFakesStartNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goroutines := runtime.NumGoroutine()
		for range 1000 {
			fake := enginetest.New()
			fake.AddImage("app:1", 1, func(engine.Spec, int) enginetest.Play {
				return enginetest.Play{Exits: true, ExitAfter: time.Hour}
			})
			for i := range 5 {
				start(t, fake, engine.Spec{Name: fmt.Sprint("c", i)})
			}
		}
		if now := runtime.NumGoroutine(); now > goroutines+5 {
			t.Errorf("%d goroutines became %d, want at most 5 more", goroutines, now)
		}
	})
}
