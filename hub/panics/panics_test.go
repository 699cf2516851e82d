package panics

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPanicIsLoggedOnceAMinuteAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		Log(slog.New(slog.NewTextHandler(&out, nil)))
		defer logger.Store(nil)
		before := Counts()["test"]
		for range 5 {
			func() {
				defer Catch("test", "node", "pi-1")
				panic("ouch")
			}()
		}
		if log := out.String(); strings.Count(log, "ouch") != 1 || !strings.Contains(log, "level=ERROR") ||
			!strings.Contains(log, "panics_test.go") || !strings.Contains(log, "node=pi-1") {
			t.Errorf("logged %s", log)
		}
		if n := Counts()["test"] - before; n != 5 {
			t.Errorf("%d panics are counted, want 5", n)
		}
		time.Sleep(quiet)
		func() {
			defer Catch("test")
			panic("ouch")
		}()
		if strings.Count(out.String(), "ouch") != 2 {
			t.Error("a panic a minute later is not logged")
		}
	})
}

func TestAWaitingCallerGetsThePanic(t *testing.T) {
	var err error
	func() {
		defer CatchThen("test", func(e error) { err = e })
		panic("ouch")
	}()
	if err == nil || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v", err)
	}
}

func TestKeepRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, runs := errors.New("ended"), 0
		err := Keep(t.Context(), "test", func(context.Context) error {
			if runs++; runs < 3 {
				panic("ouch")
			}
			return ended
		})
		if runs != 3 || !errors.Is(err, ended) {
			t.Errorf("Keep has run the function %d times: %v", runs, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Keep(ctx, "test", func(context.Context) error { panic("ouch") }); err != nil {
			t.Error(err)
		}
	})
}
