package firmwareconfigs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// A Board is the part of a device's report that a profile can match.
type Board struct {
	Compatible []string // device-tree names, the most specific first
	Arch       string   // GOARCH
	MemoryMiB  int64
}

// BoardOf returns the board of a device's status and hardware report. Missing and invalid fields
// are unknown.
func BoardOf(status corev1.NodeStatus, hardware json.RawMessage) Board {
	var report struct {
		Board struct {
			Compatible []string `json:"compatible"`
		} `json:"board"`
	}
	b := Board{Arch: status.NodeInfo.Architecture, MemoryMiB: status.Capacity.Memory().Value() >> 20}
	if json.Unmarshal(hardware, &report) == nil {
		b.Compatible = report.Board.Compatible
	}
	return b
}

// Match returns the profile of a board, or nil. All criteria of a profile must hold. If the profile
// lists platforms, the agent must be built for one of them. Of several profiles the most specific
// one is used:
//
//  1. the profile whose compatible name is earliest in the board's list (a board's own name comes
//     before its family and chip); a profile without a name comes last;
//  2. the profile with more bounds of the memory;
//  3. the profile that names the architecture, with fewer architectures before more.
//
// If two profiles are equal in all three, the error names them, because the administrator must
// choose.
func Match(profiles []*fleet.BoardProfile, board Board) (*fleet.BoardProfile, error) {
	var best []*fleet.BoardProfile
	var bestRank rank
	for _, p := range profiles {
		r, ok := rankOf(p.Spec.Match, board)
		if !ok || !runsOn(p.Spec.Platforms, board) {
			continue
		}
		switch c := slices.Compare(r[:], bestRank[:]); {
		case len(best) == 0 || c < 0:
			best, bestRank = []*fleet.BoardProfile{p}, r
		case c == 0:
			best = append(best, p)
		}
	}
	switch len(best) {
	case 0:
		return nil, nil
	case 1:
		return best[0], nil
	}
	names := make([]string, 0, len(best))
	for _, p := range best {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("profiles %s match the board %s equally well: make one of them more specific, or delete one",
		strings.Join(names, " and "), cmp.Or(strings.Join(board.Compatible, " "), board.Arch))
}

// A rank orders matching profiles. A lower rank is more specific.
type rank [3]int

func rankOf(m fleet.BoardMatch, b Board) (r rank, ok bool) {
	const unset = 1 << 16
	r = rank{unset, 2, unset}
	if len(m.Compatible) > 0 {
		r[0] = slices.IndexFunc(b.Compatible, func(name string) bool { return slices.Contains(m.Compatible, name) })
		if r[0] < 0 {
			return r, false
		}
	}
	if bounds := m.MemoryMiB; bounds != nil {
		if b.MemoryMiB < bounds.Min || bounds.Max != 0 && b.MemoryMiB > bounds.Max {
			return r, false
		}
		if bounds.Min != 0 {
			r[1]--
		}
		if bounds.Max != 0 {
			r[1]--
		}
	}
	if len(m.Arch) > 0 {
		if !slices.Contains(m.Arch, b.Arch) {
			return r, false
		}
		r[2] = len(m.Arch)
	}
	return r, true
}

// runsOn reports whether an agent of the board's architecture is built for one of the platforms.
// The board does not report its ARM version.
func runsOn(platforms []string, b Board) bool {
	return len(platforms) == 0 || b.Arch == "" || slices.ContainsFunc(platforms, func(platform string) bool {
		return strings.HasPrefix(platform+"/", "linux/"+b.Arch+"/")
	})
}
