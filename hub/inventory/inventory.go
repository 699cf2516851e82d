// Package inventory lets the fleet follow a list of the machines that there are, as
// Kubernetes follows a cloud provider's.
//
// The list is a file or comes from an https URL. A Reader reads it again and again,
// and Decide, which is pure, says what follows: a node that is not ready and whose
// machine is gone is deleted, one whose machine has been shut down gets Kubernetes'
// taint for that. A list that cannot be read decides nothing, and that is told: a
// mistake in it must not cost the fleet. It never deletes a node that is ready, never
// makes one, and changes the fleet only through the loop (package control).
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

// MaxSize bounds a list, in bytes.
const MaxSize = 4 << 20

// A State is what is known of a machine.
type State string

// States of a machine.
const (
	Present  State = "present" // the default
	Shutdown State = "shutdown"
	Gone     State = "gone"
)

// A Machine is one entry of the list.
type Machine struct {
	Name  string `yaml:"name"` // of its node
	Site  string `yaml:"site"` // for a node that says of none
	State State  `yaml:"state"`
}

// A List is every machine that there is. One that is not in it is gone. The zero List
// says nothing at all.
type List struct{ machines map[string]Machine }

// Len is the number of entries.
func (l List) Len() int { return len(l.machines) }

// Of returns what the list says of a node's machine; ok is false for one that it does
// not name.
func (l List) Of(node string) (m Machine, ok bool) {
	m, ok = l.machines[node]
	return m, ok
}

// Parse reads a list, YAML or JSON. It is strict: a misspelt field, a name that stands
// there twice or that no node can have, or a list without entries is an error, because
// what is not in the list counts as gone.
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
		return List{}, fmt.Errorf("it is no list of machines with name, site and state: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return List{}, errors.New("it goes on after the list; write a single list")
	}
	if len(all) == 0 {
		return List{}, errors.New(
			"it names no machine; a list that does not name a machine says that it is gone, so write those that there are")
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
			wrong("no node can be called %q; write lowercase letters, digits, - and .", m.Name)
		case !slices.Contains([]State{Present, Shutdown, Gone}, m.State):
			wrong("state of %s is %q; write present, shutdown or gone", m.Name, m.State)
		case m.Site != "" && len(validation.IsValidLabelValue(m.Site)) > 0:
			wrong("no site can be called %q", m.Site)
		default:
			if _, twice := l.machines[m.Name]; twice {
				wrong("%s is there already; write it once", m.Name)
			}
			l.machines[m.Name] = m
		}
	}
	if len(mistakes) > 0 {
		return List{}, errors.Join(mistakes...)
	}
	return l, nil
}
