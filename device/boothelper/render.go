// Package boothelper changes how a board boots, as root: it writes the files of a trial, replaces
// the old files with them, or restores the old ones. It accepts only configurations that the hub
// has signed for this node and board. It writes in an order in which a power cut at any moment
// leaves a board that boots the old files or the trial. It judges no trial: the agent (package
// firmware) does, by requests on a Unix socket. It knows neither containers nor MQTT and imports no
// package of the agent. flotilla-device boot-helper runs it.
package boothelper

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"flotilla.dev/shared/fleet"
)

// Limits of the boot files.
const (
	MaxConfigTxt  = 64 << 10 // bytes of config.txt
	MaxCmdlineTxt = 1024     // bytes of cmdline.txt: COMMAND_LINE_SIZE of 32-bit ARM kernels
)

const (
	beginMark  = "# BEGIN flotilla"
	endMark    = "# END flotilla"
	recordMark = "# restore: "
)

// Files are the boot files that the firmware or boot loader reads.
type Files struct {
	Config  []byte `json:"config"`  // config.txt
	Cmdline []byte `json:"cmdline"` // cmdline.txt
}

func (f Files) Equal(g Files) bool {
	return bytes.Equal(f.Config, g.Config) && bytes.Equal(f.Cmdline, g.Cmdline)
}

// A record, stored in the section, says how to undo the section. The undo needs nothing else, not
// even the helper's state.
type record struct {
	Break  bool      `json:"break,omitempty"`  // the section added the line break before itself
	Sum    string    `json:"sum,omitempty"`    // SHA-256 of cmdline.txt with the changes
	Add    []string  `json:"add,omitempty"`    // words added at the end
	Remove []removal `json:"remove,omitempty"` // removed words, in the order of removal
}

type removal struct {
	At   int    `json:"at"`   // offset of Text in the line
	Text string `json:"text"` // the word and the blanks removed with it
}

// A config is config.txt, split at Flotilla's section.
type config struct {
	before, after []byte
	section       bool
	record        record
}

// split finds Flotilla's section in config.txt.
func split(text []byte) (config, error) { return splitFile(configTxt, text) }

// splitFile finds Flotilla's section in a file.
func splitFile(name string, text []byte) (c config, err error) {
	if len(text) > MaxConfigTxt {
		return c, fmt.Errorf("%s has %d bytes: at most %d are handled", name, len(text), MaxConfigTxt)
	}
	if bytes.IndexByte(text, 0) >= 0 {
		return c, fmt.Errorf("%s contains zero bytes: it is damaged or not a text file", name)
	}
	begin, end, after := -1, -1, 0
	var inside [][]byte
	for at := 0; at < len(text); {
		next := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		line := bytes.TrimSpace(text[at:next])
		switch {
		case string(line) == beginMark && begin >= 0:
			return c, fmt.Errorf("%s has the line %q twice: remove one of the sections", name, beginMark)
		case string(line) == endMark && (begin < 0 || end >= 0):
			return c, fmt.Errorf("%s has a line %q without a begin line: remove it", name, endMark)
		case string(line) == beginMark:
			begin = at
		case string(line) == endMark:
			end, after = at, next
		case begin >= 0 && end < 0:
			inside = append(inside, line)
		}
		at = next
	}
	if begin < 0 {
		c.before = text
		return c, nil
	}
	if end < 0 {
		return c, fmt.Errorf("%s has the line %q without %q after it: add it at the end of the section", name,
			beginMark, endMark)
	}
	c.section, c.before, c.after = true, text[:begin], text[after:]
	for _, line := range inside {
		if text, ok := bytes.CutPrefix(line, []byte(recordMark)); ok {
			dec := json.NewDecoder(bytes.NewReader(text))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&c.record); err != nil {
				return c, fmt.Errorf("%s: the line %q of the section cannot be read: %w: remove the section", name,
					strings.TrimSpace(recordMark), err)
			}
		}
	}
	if c.record.Break && len(c.after) == 0 {
		c.before = bytes.TrimSuffix(c.before, []byte("\n"))
		c.before = bytes.TrimSuffix(c.before, []byte("\r"))
	}
	return c, nil
}

// restoreConfigTxt returns the files without Flotilla's changes. It restores cmdline.txt byte for
// byte, or word by word if another program has changed the line meanwhile.
func restoreConfigTxt(live Files) (Files, error) {
	c, err := split(live.Config)
	if err != nil {
		return Files{}, err
	}
	line, end, err := cmdline(live.Cmdline)
	if err != nil {
		return Files{}, err
	}
	if line, err = c.record.undo(line, live.Cmdline); err != nil {
		return Files{}, err
	}
	return Files{Config: slices.Concat(c.before, c.after), Cmdline: []byte(line + end)}, nil
}

// renderConfigTxt returns the files with the settings of b. Text outside of the section and other
// words of cmdline.txt stay unchanged.
func renderConfigTxt(live Files, b *fleet.BootConfig) (Files, error) {
	if err := b.Validate(); err != nil {
		return Files{}, err
	}
	base, err := restoreConfigTxt(live)
	if err != nil {
		return Files{}, err
	}
	c, err := split(live.Config)
	if err != nil {
		return Files{}, err
	}
	line, end, err := cmdline(base.Cmdline)
	if err != nil {
		return Files{}, err
	}
	r := record{}
	line = r.change(line, b.Cmdline)
	out := Files{Cmdline: []byte(line + end)}
	if strings.TrimSpace(line) == "" {
		return Files{}, errors.New("cmdline.txt would be empty: the kernel would have no root")
	}
	if len(out.Cmdline) > max(MaxCmdlineTxt, len(base.Cmdline)) { // the board's own line may be longer already
		return Files{}, fmt.Errorf("cmdline.txt would have %d bytes: kernels read at most %d", len(out.Cmdline),
			MaxCmdlineTxt)
	}
	if len(r.Add)+len(r.Remove) > 0 {
		r.Sum = sum(out.Cmdline)
	}
	lines := settings(b)
	if len(lines) == 0 && r.Sum == "" {
		out.Config = base.Config
		return out, nil
	}
	eol := "\n"
	if bytes.Contains(base.Config, []byte("\r\n")) {
		eol = "\r\n"
	}
	var s strings.Builder
	if n := len(c.before); n > 0 && c.before[n-1] != '\n' {
		s.WriteString(eol)
		r.Break = true
	}
	text, err := json.Marshal(r)
	if err != nil {
		return Files{}, err
	}
	head := []string{
		beginMark,
		fmt.Sprintf("# Flotilla has written these lines, from the board profile %s, revision %d.", b.Profile, b.Revision),
		recordMark + string(text), "[all]",
	}
	for _, l := range append(append(head, lines...), endMark) {
		s.WriteString(l + eol)
	}
	out.Config = slices.Concat(c.before, []byte(s.String()), c.after)
	if len(out.Config) > MaxConfigTxt {
		return Files{}, fmt.Errorf("config.txt would have %d bytes: at most %d are handled", len(out.Config), MaxConfigTxt)
	}
	return out, nil
}

// settings returns the section's lines after [all].
func settings(b *fleet.BootConfig) (lines []string) {
	for _, k := range slices.Sorted(maps.Keys(b.Config.All)) {
		lines = append(lines, k+"="+b.Config.All[k])
	}
	params := b.Config.DTParam
	if w := b.Watchdog; w != nil && w.Hardware && !slices.ContainsFunc(params, func(p string) bool {
		return strings.HasPrefix(p, "watchdog=")
	}) {
		params = append(slices.Clone(params), "watchdog=on")
	}
	if len(params) > 0 {
		lines = append(lines, "dtoverlay=") // the next parameters belong to the board, not to an overlay above the section
	}
	for _, p := range params {
		lines = append(lines, "dtparam="+p)
	}
	for _, o := range b.Config.DTOverlay {
		lines = append(lines, "dtoverlay="+o)
	}
	return lines
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:8])
}

// diffConfigTxt lists the lines of config.txt and the words of cmdline.txt that a change adds and
// removes.
func diffConfigTxt(from, to Files) string {
	var out strings.Builder
	for _, file := range []struct {
		name     string
		from, to []string
	}{{"config.txt", contentLines(from.Config), contentLines(to.Config)}, {"cmdline.txt", wordsOf(from), wordsOf(to)}} {
		for _, l := range subtract(file.from, file.to) {
			fmt.Fprintf(&out, "%s: -%s\n", file.name, l)
		}
		for _, l := range subtract(file.to, file.from) {
			fmt.Fprintf(&out, "%s: +%s\n", file.name, l)
		}
	}
	return out.String()
}

// contentLines returns the lines of a text without blank lines and comments.
func contentLines(text []byte) (list []string) {
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' {
			list = append(list, l)
		}
	}
	return list
}

func wordsOf(f Files) (list []string) {
	text := strings.TrimRight(string(f.Cmdline), "\r\n")
	for _, x := range words(text) {
		list = append(list, text[x.from:x.to])
	}
	return list
}

// sectionLost reports whether the live files lack a line of the section in ours, or a change that
// the section made to cmdline.txt. It reports false if a file cannot be parsed.
func sectionLost(ours, live Files) bool {
	c, err := split(ours.Config)
	if err != nil || !c.section {
		return false
	}
	if _, err := split(live.Config); err != nil {
		return false
	}
	section := ours.Config[len(c.before) : len(ours.Config)-len(c.after)]
	wrote := slices.DeleteFunc(contentLines(section), func(l string) bool {
		return l == "[all]"
	})
	line := wordsOf(live)
	return len(subtract(wrote, contentLines(live.Config))) > 0 || len(subtract(c.record.Add, line)) > 0 ||
		slices.ContainsFunc(c.record.Remove, func(r removal) bool {
			return slices.Contains(line, strings.Trim(r.Text, " \t"))
		})
}

// subtract returns the entries of a that b lacks; repeated entries count separately.
func subtract(a, b []string) (out []string) {
	remaining := map[string]int{}
	for _, s := range b {
		remaining[s]++
	}
	for _, s := range a {
		if remaining[s]--; remaining[s] < 0 {
			out = append(out, s)
		}
	}
	return out
}
