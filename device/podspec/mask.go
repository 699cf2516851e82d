package podspec

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// leastHidden is the shortest text of a secret that is looked for: what is shorter
// stands in every sentence.
const leastHidden = 4 // bytes

// A hidden error is one whose text has been taken what stands in a secret.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.err }

// MaskSecrets takes from an error what a container's environment has from secrets: a subPathExpr
// or a command that is made of it is quoted by whoever fails with it, an engine too, and
// events are read by those who may not read secrets.
func (s Sources) MaskSecrets(c *corev1.Container, err error) error {
	if err == nil || c == nil {
		return err
	}
	text := err.Error()
	for _, v := range s.secretValues(c) {
		text = strings.ReplaceAll(text, v.text, "(secret "+v.of+")")
	}
	if text == err.Error() {
		return err
	}
	return &hidden{text, err}
}

// A secretValue is a text of a secret, and which it is.
type secretValue struct{ text, of string }

// secretValues are what a container's environment has from secrets: the values, as they
// are and as they are quoted, and the names in those that are paths. The longest is first.
func (s Sources) secretValues(c *corev1.Container) (all []secretValue) {
	add := func(of, key string, value []byte) {
		of = fmt.Sprintf("%s, key %s", of, key)
		text := string(value)
		quoted := strconv.Quote(text)
		for _, t := range append([]string{text, strings.TrimSpace(text), quoted[1 : len(quoted)-1]},
			strings.FieldsFunc(text, func(r rune) bool { return r == '/' || r == '\n' })...) {
			if len(t) >= leastHidden {
				all = append(all, secretValue{t, of})
			}
		}
	}
	for _, from := range c.EnvFrom {
		if from.SecretRef == nil {
			continue
		}
		if m, err := s.Secret(from.SecretRef.Name); err == nil && m != nil {
			for k, v := range SecretData(m) {
				add(m.Name, k, v)
			}
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
			continue
		}
		r := e.ValueFrom.SecretKeyRef
		if m, err := s.Secret(r.Name); err == nil && m != nil {
			add(m.Name, r.Key, SecretData(m)[r.Key])
		}
	}
	sort.Slice(all, func(i, j int) bool { return len(all[i].text) > len(all[j].text) })
	return all
}
