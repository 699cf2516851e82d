package store

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// A postgres is what a store has in addition that is kept in PostgreSQL. The rest of the
// package works on it as on SQLite.
//
// One hub writes: it holds an advisory lock as long as its connection lives, and each of
// its transactions first updates the one row of the table leader, if the token in it is
// still its own. So a transaction of a hub that was overtaken cannot commit, transactions
// are one after the other (commands lock the row, too), and the number of the newest one
// stands in the row: after a connection that broke in the middle of COMMIT the hub reads
// there whether it was carried out.
type postgres struct {
	config *pgx.ConnConfig
	where  string // as people see it: without the password
	waits  waits
	log    *slog.Logger
	told   atomic.Int64 // when the log last said that the server is away, in Unix seconds; 0: it is there

	// What follows is guarded by the store's mu.
	empty   bool  // there are no tables yet
	token   int64 // in the leader's row; 0: shared, we are not the leader
	tx      int64 // number of the newest transaction that was acknowledged
	doubt   *doubt
	pid     int32 // of the server's process for the writer's connection, and of no pooler's
	rest    time.Time
	why     error         // why there is no connection
	over    error         // why this store writes nothing any more
	overing chan struct{} // closed with it
	once    sync.Once
	member  *Member // nil: this hub knows of no others
	standby bool    // nothing may be written
}

const (
	// oldestServer is the first release with all that is used here, and that is still maintained anywhere.
	oldestServer = 13
	dialTimeout  = 5 * time.Second
	// between two tries to reach a server that is away: who comes meanwhile is told at once.
	restBetween = 500 * time.Millisecond
	// conflicts is how often one transaction is tried again that the server gave up for another's sake.
	conflicts = 5
	lockClass = 0x666c6f74 // "flot", the class of our advisory locks
	readers   = 4
)

// waits are how long a store waits for a server.
type waits struct {
	stalled  time.Duration // for a word of an answer; then the connection is given up
	patience time.Duration // for a connection that was there a moment ago
	doubt    time.Duration // for what became of a plan: the hub's belief must not differ from the database
}

var usualWaits = waits{stalled: 10 * time.Second, patience: 5 * time.Second, doubt: 2 * time.Minute}

// Ended returns when this store can write nothing any more although it is open: another
// hub has taken the database over, or it is not what this hub has left. What the hub
// believes then has to be read anew. It returns nil when ctx ends.
func (s *Store) Ended(ctx context.Context) error {
	if s.pg == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.pg.overing:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pg.over
	}
}
