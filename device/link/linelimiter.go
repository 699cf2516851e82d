package link

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limits of log lines about an unstable link: tellBurst lines, then one each tellEvery. A device
// that loses its link twice a minute all night logs 17 kB.
const (
	tellBurst = 20
	tellEvery = 10 * time.Minute
)

// A lineLimiter logs lines about the link within these limits, and others at level Debug; the next
// line reports their number.
type lineLimiter struct {
	mu     sync.Mutex
	spent  float64
	at     time.Time
	unsaid int
}

func (t *lineLimiter) tell(log *slog.Logger, level slog.Level, what string, args ...any) {
	t.mu.Lock()
	now := time.Now()
	t.spent = max(0, t.spent-float64(max(now.Sub(t.at), 0))/float64(tellEvery))
	t.at = now
	if t.spent > tellBurst-1 {
		t.unsaid++
		level = slog.LevelDebug
	} else {
		t.spent++
		if t.unsaid > 0 {
			args = append(args, "unsaid", t.unsaid)
		}
		t.unsaid = 0
	}
	t.mu.Unlock()
	log.Log(context.Background(), level, what, args...)
}
