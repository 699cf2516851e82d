package link

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

// A lost chunk frees its place once a later chunk is acknowledged.
func TestALostChunkDelaysNoLaterChunk(t *testing.T) {
	for _, c := range []struct {
		name string
		lost []int // the lost chunks among those in flight, from 0
	}{
		{"the first of four", []int{0}},
		{"the first and the last of four", []int{0, 3}},
		{"all but the second", []int{0, 2, 3}},
		{"all but the third", []int{0, 1, 3}},
		{"all but the last", []int{0, 1, 2}},
		{"the last of four", []int{3}},
	} {
		for _, what := range []string{"chunk", "acknowledgement"} {
			t.Run(c.name+", "+what, func(t *testing.T) {
				h := &hub{rate: 100 << 10, buffer: 1 << 20} // all four are in flight before the first acknowledgement
				bubble(t, h, func(t *testing.T, l *Link, a *agent) {
					time.Sleep(time.Second)
					send := func(s *Stream, n int) {
						for range n {
							if err := s.Send(context.Background(), wire.Reply{Data: []byte("x")}); err != nil {
								t.Error(err)
							}
						}
					}
					send(l.Stream("r1"), 10) // a fast line: four at once
					time.Sleep(time.Second)
					seen := 0
					hit := func(what string) bool {
						if what == string(wire.ChannelReply) {
							seen++
							return slices.Contains(c.lost, seen-1)
						}
						return false
					}
					h.mu.Lock()
					if h.mute = hit; what == "chunk" {
						h.lose, h.mute = hit, nil
					}
					h.mu.Unlock()
					began := time.Now()
					send(l.Stream("r2"), 20)
					if took := time.Since(began); took > time.Second {
						t.Errorf("the chunks after a lost one waited %s, want at most 1s", took)
					}
				})
			})
		}
	}
}

// A lost last chunk, or a lost single chunk, is noticed only by its timeout.
func TestAnUnacknowledgedChunkTimesOut(t *testing.T) {
	h := &hub{}
	bubble(t, h, func(t *testing.T, l *Link, a *agent) {
		synctest.Wait()
		h.mu.Lock()
		h.mute = func(what string) bool { return what == string(wire.ChannelReply) }
		h.mu.Unlock()
		began := time.Now()
		s := l.Stream("r1")
		for range 4 {
			if err := s.Send(context.Background(), wire.Reply{Data: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took.Truncate(time.Second) != 3*ackTimeout {
			t.Errorf("four chunks were sent in %s, want one every %s", took, ackTimeout)
		}
	})
}
