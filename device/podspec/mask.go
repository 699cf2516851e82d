package podspec

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// minSecret is the length in bytes of the shortest secret that is masked: shorter texts occur in
// any message.
const minSecret = 4

// A maskedError is an error whose text contains no secrets.
type maskedError struct {
	text string
	err  error
}

func (h *maskedError) Error() string { return h.text }
func (h *maskedError) Unwrap() error { return h.err }

// MaskSecrets removes the secrets in a container's environment from an error. The agent or engine
// may quote an expanded subPathExpr or command, and more people may read events than secrets.
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
	return &maskedError{text, err}
}

// A secretValue is a text of a secret, with the secret's name and key.
type secretValue struct{ text, of string }

// secretValues returns the secret values in a container's environment, plain and quoted, and the
// file names in values that are paths. The longest value comes first.
func (s Sources) secretValues(c *corev1.Container) (all []secretValue) {
	add := func(of, key string, value []byte) {
		of = fmt.Sprintf("%s, key %s", of, key)
		text := string(value)
		quoted := strconv.Quote(text)
		for _, t := range append([]string{text, strings.TrimSpace(text), quoted[1 : len(quoted)-1]},
			strings.FieldsFunc(text, func(r rune) bool { return r == '/' || r == '\n' })...) {
			if len(t) >= minSecret {
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
