package boothelper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"flotilla.dev/shared/wire"
)

// Operations of a Request.
const (
	OpStatus  = "status"
	OpPin     = "pin"
	OpInspect = "inspect"
	OpArm     = "arm"
	OpKeep    = "keep"
	OpRestore = "restore"
	OpUndo    = "undo"
)

// A Request is one request of the agent.
type Request struct {
	Op       string         `json:"op"`
	Firmware *wire.Firmware `json:"firmware,omitempty"` // for inspect and arm
	Digest   string         `json:"digest,omitempty"`   // for keep and undo
	Node     string         `json:"node,omitempty"`     // for pin
	Key      []byte         `json:"key,omitempty"`      // for pin
}

// A Reply is the helper's answer to a Request.
type Reply struct {
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
	Diff   string  `json:"diff,omitempty"`
}

// Do carries out a request.
func (h *Helper) Do(r Request) (a Reply) {
	err := h.Settle()
	switch {
	case r.Op == OpStatus:
		s := h.Status()
		if err != nil {
			s.Refused, err = err.Error(), nil
		}
		a.Status = &s
	case err != nil:
	case r.Op == OpPin:
		err = h.Pin(r.Node, r.Key)
	case r.Op == OpInspect:
		a.Diff, err = h.Inspect(r.Firmware)
		if len(a.Diff) > wire.MaxFirmwareDiff {
			a.Diff = strings.ToValidUTF8(a.Diff[:wire.MaxFirmwareDiff-len("…")], "") + "…"
		}
	case r.Op == OpArm:
		err = h.Arm(r.Firmware)
	case r.Op == OpKeep:
		err = h.Keep(r.Digest)
	case r.Op == OpRestore:
		err = h.Restore()
	case r.Op == OpUndo:
		err = h.Undo(r.Digest)
	default:
		err = fmt.Errorf("unknown operation %.40q", r.Op)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// unmarshal decodes one JSON value and refuses unknown fields.
func unmarshal(text []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if dec.More() {
		return errors.New("more than one JSON value")
	}
	return nil
}

// Err returns the error of the reply.
func (a Reply) Err() error {
	if a.Error == "" {
		return nil
	}
	return errors.New(a.Error)
}
