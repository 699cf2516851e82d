package link

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// What is told of a link that comes and goes: tellBurst lines, and then one each
// tellEvery. A device that loses its link twice a minute all night tells 17 kB of it.
const (
	tellBurst = 20
	tellEvery = 10 * time.Minute
)

// A lineLimiter writes lines about the link to the log while there are some left, and the others
// at level Debug; the next line then says how many those were.
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
