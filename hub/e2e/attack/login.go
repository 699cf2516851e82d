package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// loginFlood tries passwords as fast as possible: for one user, for many users, for unknown and
// invalid names. It also tries secrets of the setup link.
func loginFlood(ctx context.Context, a *harness.Hub) (string, error) {
	if err := a.User(ctx, "kari", "admin"); err != nil {
		return "", err
	}
	const long = 20 * time.Second
	stop, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	before, wrote := a.CPU(), a.Wrote()
	var tried, limited, in atomic.Int64
	c := a.Client()
	harness.Each(stop, 16*1000, 16, func(i int) {
		name := []string{"kari", fmt.Sprintf("nobody-%d", i), strings.Repeat("k", 60_000), "k\u0430ri\u202e\x00"}[i%4]
		code, cookie, err := a.Login(stop, c, name, strings.Repeat("x", 200))
		switch {
		case cookie != nil:
			in.Add(1)
			cancel()
		case err == nil:
			tried.Add(1)
		}
		if code == http.StatusTooManyRequests {
			limited.Add(1)
		}
	})
	spent, kib := a.CPU()-before, (a.Wrote()-wrote)>>10
	seen := fmt.Sprintf("%d tries, %d of them refused as too many, %s of CPU, %d KiB written",
		tried.Load(), limited.Load(),
		spent, kib)
	// A checked password costs a tenth of a second. A refused attempt may cost a twentieth of that.
	looked := tried.Load() - limited.Load()
	switch most := time.Duration(limited.Load())*5*time.Millisecond + time.Duration(looked)*200*time.Millisecond; {
	case in.Load() > 0:
		return seen, errors.New("a wrong password is accepted")
	case tried.Load() == 0:
		return seen, errors.New("nothing was tried")
	case spent > most:
		return seen, fmt.Errorf("%d checked and %d refused tries may cost at most %s", looked, limited.Load(), most)
	case kib > 16<<10:
		return seen, errors.New("attempts write too much to the disk")
	}
	return seen, nil
}
