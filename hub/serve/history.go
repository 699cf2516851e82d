package serve

import (
	"path/filepath"

	"flotilla.dev/hub/history"
)

// newHistory returns the node history, nil if it is switched off.
func (h *Hub) newHistory() *history.History {
	if h.cfg.History <= 0 {
		return nil
	}
	return history.Open(history.Config{
		Dir: filepath.Join(h.cfg.DataDir, "history"), Life: h.cfg.History, Now: h.Loop.Now, Fleet: h.Loop.Snapshot,
		Log: h.log,
		Measure: func(node string) (history.Sample, bool) {
			v, heard := h.Loop.TakeVitals(node)
			s := history.Nothing()
			if !heard {
				return s, false
			}
			for k, is := range map[history.Kind]*float64{
				history.CPU: v.CPU, history.Memory: v.Memory, history.Disk: v.Disk,
				history.Temperature: v.Temperature, history.Supply: v.Supply, history.RTT: v.RTT,
			} {
				if is != nil {
					s[k] = *is
				}
			}
			if v.Silence > 0 {
				s[history.Silence], s[history.Losses] = v.Silence.Seconds(), float64(v.Lost)
			}
			return s, true
		},
	})
}
