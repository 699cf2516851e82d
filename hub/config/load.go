package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"flotilla.dev/shared/policy"
)

// A Source names the origin of a value: "default", "flag --x", "FLOTILLA_X", "hub.yaml:3".
type Source string

// A value is the text that one source has for one name.
type value struct {
	name, text string
	from       Source
}

// Bind declares the flags of every setting, --config and --print-config.
func Bind(flags *pflag.FlagSet) {
	for _, s := range settings {
		f := flags.VarPF(&flagValue{text: s.fallback, kind: s.kind}, s.name, "", s.usage)
		if s.kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	flags.Var(&flagValue{kind: "duration"}, podEvictionTimeout,
		"older name for default-not-ready-toleration-seconds and default-unreachable-toleration-seconds together")
	flags.String("config", "", "YAML file of settings; their names are those of the flags")
	flags.Bool("print-config", false, "print every setting and its source, then exit")
}

// A flagValue keeps the text of a flag; Load parses it together with the other sources.
type flagValue struct{ text, kind string }

func (v *flagValue) String() string     { return v.text }
func (v *flagValue) Set(s string) error { v.text = s; return nil }
func (v *flagValue) Type() string       { return v.kind }

// Load reads the settings from defaults, file (--config or FLOTILLA_CONFIG), environment
// ("NAME=value") and flags; a later source overrides. The error has every mistake; the warnings
// name unknown FLOTILLA_ variables.
func Load(flags *pflag.FlagSet, environ []string) (c Config, warnings []string, err error) {
	c = Default()
	var mistakes []error
	fromEnv, file, warnings, errs := readEnvironment(environ)
	mistakes = append(mistakes, errs...)
	if f := flags.Lookup("config"); f != nil && f.Changed {
		file = f.Value.String()
	}
	var fromFile []value
	if file != "" {
		fromFile, errs = readFile(file)
		mistakes = append(mistakes, errs...)
	}
	var fromFlags []value
	flags.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*flagValue); ok {
			fromFlags = append(fromFlags, value{f.Name, v.text, Source("flag --" + f.Name)})
		}
	})
	for _, level := range [][]value{fromFile, fromEnv, fromFlags} {
		mistakes = append(mistakes, c.take(level)...)
	}
	mistakes = append(mistakes, c.readPolicy()...)
	if from := c.source("database"); hasPassword(c.Database) && strings.HasPrefix(string(from), "flag ") {
		warnings = append(warnings, "every user of this machine can read the password in --database; write the "+
			"URL into a file, and set --database to the path of the file")
	}
	if c.policy != nil && c.policy.PodPidsLimit != policy.DefaultPidsLimit {
		warnings = append(warnings, "podPidsLimit in "+c.PolicyFile+
			" has no effect on the hub; set it in the policy of a device")
	}
	return c, warnings, errors.Join(append(mistakes, c.Validate())...)
}

// take applies the values of one source.
func (c *Config) take(level []value) (mistakes []error) {
	at := slices.IndexFunc(level, func(v value) bool { return v.name == podEvictionTimeout })
	if at >= 0 { // the older name sets both settings
		alias := level[at]
		for _, v := range level {
			if slices.Contains(aliased, v.name) {
				mistakes = append(mistakes,
					fmt.Errorf("%s: %s and %s set the same value; write one of them", alias.from, alias.name, v.name))
			}
		}
		d, err := time.ParseDuration(alias.text)
		if err != nil || d%time.Second != 0 {
			mistakes = append(mistakes, fmt.Errorf("%s: %s is %q; write whole seconds or minutes with their unit, such as 5m0s",
				alias.from, alias.name, alias.text))
		} else {
			for _, name := range aliased {
				mistakes = append(mistakes, c.takeOne(value{name, strconv.FormatInt(int64(d/time.Second), 10), alias.from})...)
			}
		}
	}
	for i, v := range level {
		if i != at {
			mistakes = append(mistakes, c.takeOne(v)...)
		}
	}
	return mistakes
}

func (c *Config) takeOne(v value) []error {
	s, ok := find(v.name)
	if !ok {
		return []error{fmt.Errorf("%s: %w", v.from, unknown("", v.name))}
	}
	if err := s.set(c, v.text); err != nil {
		return []error{fmt.Errorf("%s: %s is %q; %w", v.from, v.name, v.text, err)}
	}
	c.sources[v.name] = v.from
	return nil
}

// Print writes every setting as YAML for --config, with its source as a comment.
func (c *Config) Print(w io.Writer) error {
	for _, s := range settings {
		text, err := yaml.Marshal(s.get(c))
		if err != nil {
			return err
		}
		shown := strings.TrimSpace(string(text))
		if s.kind == "bool" || s.kind == "number" || s.kind == "int" {
			shown = s.get(c)
		}
		if _, err := fmt.Fprintf(w, "%-60s # %s\n", s.name+": "+shown, c.source(s.name)); err != nil {
			return err
		}
	}
	return nil
}

// A Shown is a setting for display.
type Shown struct{ Name, Value, From string }

// All lists every setting for display.
func (c *Config) All() (all []Shown) {
	for _, s := range settings {
		all = append(all, Shown{s.name, s.get(c), string(c.source(s.name))})
	}
	return all
}

func (c *Config) source(name string) Source {
	if from, ok := c.sources[name]; ok {
		return from
	}
	return "default"
}

const envPrefix = "FLOTILLA_"

func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func readEnvironment(environ []string) (values []value, file string, warnings []string, mistakes []error) {
	for _, pair := range environ {
		key, text, ok := strings.Cut(pair, "=")
		if !ok || !strings.HasPrefix(key, envPrefix) {
			continue
		}
		name := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(key, envPrefix), "_", "-"))
		_, known := find(name)
		switch {
		case key == envName("config"):
			file = text
		case known || name == podEvictionTimeout:
			values = append(values, value{name, text, Source(key)})
		case absent[name] != "" || closest(name) != "":
			mistakes = append(mistakes, fmt.Errorf("%s: %w", key, unknown("", name)))
		default: // devices and tests use this prefix too
			warnings = append(warnings, key+" in the environment is not a setting of the hub")
		}
	}
	return values, file, warnings, mistakes
}

// readFile reads a flat YAML file of names and values. Unknown and repeated names are mistakes.
func readFile(file string) (values []value, mistakes []error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, []error{fmt.Errorf("read configuration: %w; correct --config or leave it out", err)}
	}
	var doc, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(raw))
	err = documents.Decode(&doc)
	if err == nil {
		err = documents.Decode(&second)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, []error{fmt.Errorf("%s: %w; write one `name: value` per line", file, err)}
	}
	if len(second.Content) > 0 && second.Content[0].Tag != "!!null" {
		return nil, []error{fmt.Errorf(
			"%s:%d: a second YAML document begins; write all settings in one, without ---", file,
			second.Content[0].Line)}
	}
	if len(doc.Content) == 0 { // the file is empty or has only comments
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, []error{fmt.Errorf("%s:%d: not a list of settings; write one `name: value` per line", file,
			top.Line)}
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, val := top.Content[i], top.Content[i+1]
		from := Source(fmt.Sprintf("%s:%d", file, key.Line))
		switch first := lines[key.Value]; {
		case first != 0:
			mistakes = append(mistakes, fmt.Errorf("%s: %s is also in line %d; write it once", from, key.Value, first))
		case val.Kind != yaml.ScalarNode:
			mistakes = append(mistakes,
				fmt.Errorf("%s: %s is a list or a block; write a single value", from, key.Value))
		case val.Tag == "!!null":
			mistakes = append(mistakes, fmt.Errorf("%s: %s has no value; write one or remove the line", from, key.Value))
		default:
			values = append(values, value{key.Value, val.Value, from})
		}
		lines[key.Value] = key.Line
	}
	return values, mistakes
}
