package link

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of log lines about an unstable link: lineBurst lines at once, then one every lineInterval.
// A device that loses its link twice a minute all night logs 17 kB.
const (
	lineBurst    = 20
	lineInterval = 10 * time.Minute
)

// A lineLimiter logs lines about the link within these limits. It logs excess lines at level Debug
// and reports their number with the next line.
type lineLimiter struct {
	mu         sync.Mutex
	spent      float64
	at         time.Time
	suppressed int
}

func (t *lineLimiter) line(log *slog.Logger, level slog.Level, what string, args ...any) {
	t.mu.Lock()
	now := time.Now()
	t.spent = max(0, t.spent-float64(max(now.Sub(t.at), 0))/float64(lineInterval))
	t.at = now
	if t.spent > lineBurst-1 {
		t.suppressed++
		level = slog.LevelDebug
	} else {
		t.spent++
		if t.suppressed > 0 {
			args = append(args, "unsaid", t.suppressed)
		}
		t.suppressed = 0
	}
	t.mu.Unlock()
	log.Log(context.Background(), level, what, args...)
}
