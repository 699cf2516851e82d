package access

import (
	"errors"
	"fmt"
	"strings"

	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// serialEnd is how many characters of a serial number follow a name's prefix.
const serialEnd = 8

// maxNameErrors bounds the message about a file that is not a list of names.
const maxNameErrors = 20

// nodeName is the token's node, else the token's name for this board, else the device's
// --node-name, else the host name.
func nodeName(t store.JoinToken, r wire.JoinRequest) (string, error) {
	board := strings.ToLower(r.Serial)
	if board == "" {
		board = r.MachineID
	}
	name := t.Node
	if name == "" {
		name = t.Names.BySerial[board]
	}
	if end := board[max(len(board)-serialEnd, 0):]; name == "" && t.Names.Prefix != "" && end != "" {
		name = t.Names.Prefix + end
	}
	switch {
	case name == "" && (t.Names.Prefix != "" || len(t.Names.BySerial) > 0):
		return "", fmt.Errorf("%w: the list of names of token %s has no line for this device, serial number %q; create a "+
			"token with such a line", ErrConflict, t.ID, board)
	case name != "" && r.Node != "" && r.Node != name:
		return "", fmt.Errorf("%w: token %s is for node %s, not for %.63s; remove --node-name or use a token without a node",
			ErrConflict, t.ID, name, r.Node)
	case name == "" && r.Node != "":
		name = r.Node
	case name == "":
		name = strings.ToLower(strings.TrimSuffix(r.Hostname, "."))
	}
	if err := wire.ValidNode(name); err != nil {
		return "", fmt.Errorf("%w: %w; choose one with --node-name", ErrInvalid, err)
	}
	return name, nil
}

// ParseNames reads lines "SERIAL,NAME": a board's serial number and its node's name. Empty lines
// and lines that begin with # are skipped. It reports the first wrong lines.
func ParseNames(text string) (map[string]string, error) {
	names, lineOf := map[string]string{}, map[string]int{}
	var errs []error
	n := 0
	for line := range strings.Lines(text) {
		if len(errs) == maxNameErrors {
			errs = append(errs, errors.New("there may be more wrong lines"))
			break
		}
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		serial, name, ok := strings.Cut(line, ",")
		serial, name = strings.ToLower(strings.TrimSpace(serial)), strings.TrimSpace(name)
		switch err := wire.ValidNode(name); {
		case !ok || serial == "" || len(serial) > wire.MaxSerial:
			errs = append(errs, fmt.Errorf("line %d: %.80q is not SERIAL,NAME, such as 10000000d5e6f7a8,till-1", n, line))
		case err != nil:
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		case names[serial] != "":
			errs = append(errs, fmt.Errorf("line %d: serial number %s has the name %s already", n, serial, names[serial]))
		case lineOf[name] != 0:
			errs = append(errs, fmt.Errorf("line %d: name %s is on line %d already", n, name, lineOf[name]))
		default:
			names[serial], lineOf[name] = name, n
		}
	}
	if len(names) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("there are no names; write one line SERIAL,NAME for each device"))
	}
	return names, errors.Join(errs...)
}
