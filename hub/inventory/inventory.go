// Package inventory makes the fleet follow a list of the existing machines, as Kubernetes follows a
// cloud provider's list.
//
// The list is a file or an https URL. A Reader reads it periodically, and Decide, which is pure,
// returns the changes. A node that is not ready and whose machine is gone is deleted. One whose
// machine is shut down gets Kubernetes' taint for that. An invalid list is reported and changes
// nothing, so that a mistake in it cannot delete the fleet. The package never deletes a ready node,
// never creates a node, and changes the fleet only through package control's loop.
package inventory

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"go.yaml.in/yaml/v3"

	"flotilla.dev/shared/bound"
)

// MaxSize is the largest list, in bytes.
const MaxSize = 4 << 20

// A State is the state of a machine in the list.
type State string

// The states.
const (
	Present  State = "present" // the default
	Shutdown State = "shutdown"
	Gone     State = "gone"
)

// A Machine is one entry of the list.
type Machine struct {
	Name  string `yaml:"name"` // name of its node
	Site  string `yaml:"site"` // site for a node without a site
	State State  `yaml:"state"`
}

// A List has every existing machine; all other machines are gone. The zero List means that there is
// no list.
type List struct{ machines map[string]Machine }

// Len returns the number of entries.
func (l List) Len() int { return len(l.machines) }

// Of returns the entry of a node's machine; ok is false if the list lacks it.
func (l List) Of(node string) (m Machine, ok bool) {
	m, ok = l.machines[node]
	return m, ok
}

// Parse parses a list in YAML or JSON. Because a missing machine counts as gone, it refuses
// misspelt fields, repeated and invalid names, and an empty list.
func Parse(text []byte) (List, error) {
	if len(text) > MaxSize {
		return List{}, fmt.Errorf("it has more than %d bytes", MaxSize)
	}
	if err := bound.YAML(text, nil); err != nil {
		return List{}, fmt.Errorf("it cannot be read: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var all []Machine
	if err := d.Decode(&all); err != nil && !errors.Is(err, io.EOF) {
		return List{}, fmt.Errorf("it is not a list of machines with name, site and state: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return List{}, errors.New("there is more after the list; write a single list")
	}
	if len(all) == 0 {
		return List{}, errors.New(
			"it lists no machine, which would mean that all are gone; list the existing ones")
	}
	l := List{machines: make(map[string]Machine, len(all))}
	var mistakes []error
	for i, m := range all {
		wrong := func(format string, args ...any) {
			if len(mistakes) < 10 {
				mistakes = append(mistakes, fmt.Errorf("entry %d: "+format, append([]any{i + 1}, args...)...))
			}
		}
		m.State = cmp.Or(m.State, Present)
		switch {
		case m.Name == "":
			wrong("it has no name")
		case len(validation.IsDNS1123Subdomain(m.Name)) > 0:
			wrong("%q is not a valid node name; use lowercase letters, digits, - and .", m.Name)
		case !slices.Contains([]State{Present, Shutdown, Gone}, m.State):
			wrong("state of %s is %q; write present, shutdown or gone", m.Name, m.State)
		case m.Site != "" && len(validation.IsValidLabelValue(m.Site)) > 0:
			wrong("%q is not a valid site name", m.Site)
		default:
			if _, twice := l.machines[m.Name]; twice {
				wrong("%s is listed twice", m.Name)
			}
			l.machines[m.Name] = m
		}
	}
	if len(mistakes) > 0 {
		return List{}, errors.Join(mistakes...)
	}
	return l, nil
}
