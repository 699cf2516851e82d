package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

func text(name, kind, fallback, usage string, field func(*Config) *string) setting {
	return setting{
		name: name, kind: kind, fallback: fallback, usage: usage,
		set: func(c *Config, v string) error { *field(c) = v; return nil },
		get: func(c *Config) string { return *field(c) },
	}
}

// list is a setting whose value is words separated by commas.
func list(name, kind, fallback, usage string, field func(*Config) *[]string) setting {
	return setting{
		name: name, kind: kind, fallback: fallback, usage: usage,
		set: func(c *Config, v string) error {
			*field(c) = nil
			for word := range strings.SplitSeq(v, ",") {
				if word = strings.TrimSpace(word); word != "" {
					*field(c) = append(*field(c), word)
				}
			}
			return nil
		},
		get: func(c *Config) string { return strings.Join(*field(c), ",") },
	}
}

func boolean(name, fallback, usage string, field func(*Config) *bool) setting {
	return setting{
		name: name, kind: "bool", fallback: fallback, usage: usage,
		set: func(c *Config, v string) error {
			return oneOf(v, []choice[bool]{{"true", true}, {"false", false}}, field(c))
		},
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
	}
}

func duration(name, fallback, usage string, field func(*Config) *time.Duration) setting {
	return setting{
		name: name, kind: "duration", fallback: fallback, usage: usage,
		set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil {
				return errors.New("write a number with its unit, such as 40s, 5m or 1h30m")
			}
			*field(c) = d
			return nil
		},
		get: func(c *Config) string { return field(c).String() },
	}
}

func number(name, fallback, usage string, field func(*Config) *float64) setting {
	return setting{
		name: name, kind: "number", fallback: fallback, usage: usage,
		set: func(c *Config, v string) error {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
				return fmt.Errorf("write a decimal number, such as %s", fallback)
			}
			*field(c) = f
			return nil
		},
		get: func(c *Config) string { return strconv.FormatFloat(*field(c), 'g', -1, 64) },
	}
}

func integer[T int | int64](name, fallback, usage string, field func(*Config) *T) setting {
	return setting{
		name: name, kind: "int", fallback: fallback, usage: usage,
		set: func(c *Config, v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil {
				return fmt.Errorf("write a whole number, such as %s", fallback)
			}
			*field(c) = T(n)
			return nil
		},
		get: func(c *Config) string { return strconv.FormatInt(int64(*field(c)), 10) },
	}
}

// setRange parses a range of addresses, such as 10.64.0.0/12.
func setRange(v string, to *netip.Prefix) error {
	p, err := netip.ParsePrefix(v)
	if err != nil || p.Addr().Is4In6() {
		return errors.New(
			"write an address and a prefix length, such as 10.64.0.0/12 or fd64::/48")
	}
	if p != p.Masked() {
		return fmt.Errorf("the address is not the first of its range; write %s", p.Masked())
	}
	*to = p
	return nil
}

// A choice is one valid word of a setting, with its value.
type choice[T any] struct {
	word  string
	value T
}

var levels = []choice[slog.Level]{{"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"warn", slog.LevelWarn},
	{"error", slog.LevelError}}

func oneOf[T any](v string, choices []choice[T], to *T) error {
	var words []string
	for _, c := range choices {
		if v == c.word {
			*to = c.value
			return nil
		}
		words = append(words, c.word)
	}
	last := len(words) - 1
	return errors.New("write " + strings.Join(words[:last], ", ") + " or " + words[last])
}

func nameOf[T comparable](v T, choices []choice[T]) string {
	for _, c := range choices {
		if c.value == v {
			return c.word
		}
	}
	return fmt.Sprint(v)
}

// Default returns the configuration with every setting at its default.
func Default() Config {
	c := Config{sources: map[string]Source{}}
	for _, s := range settings {
		if err := s.set(&c, s.fallback); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", s.name, err))
		}
	}
	return c
}

func find(name string) (setting, bool) {
	for _, s := range settings {
		if s.name == name {
			return s, true
		}
	}
	return setting{}, false
}
