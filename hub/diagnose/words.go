package diagnose

import (
	"cmp"
	"fmt"
)

// Row returns the short text for one pod or node.
func (f Finding) Row() string {
	if row := RuleOf(f.Cause).Row; row != nil {
		return row(f)
	}
	return ""
}

// Detail returns the message of the device or the hub, without the parts that repeat the cause and
// the object.
func (f Finding) Detail() string {
	switch f.Cause {
	case CrashLoop, ContainerExited:
		return f.End.sentence(f.Container)
	case PodFailed, PodReplaced:
		return cmp.Or(f.Message, f.End.sentence(f.Container), f.Reason)
	case CannotStart:
		return f.Reason + ": " + f.Message
	case ImageNotPulled:
		if f.Reason == "ImagePullBackOff" {
			return "" // the message only repeats the cause
		}
		return WithReason(f.Reason, f.Message)
	case DoesNotStop:
		return ""
	}
	return f.Message
}

// sentence returns how a container ended.
func (e End) sentence(container string) string {
	if !e.Known {
		return ""
	}
	text := fmt.Sprintf("container %s ended with exit code %d", container, e.Code)
	if e.Reason != "" && e.Reason != "Error" {
		text += ", " + e.Reason
	}
	return text
}

// short returns how a container ended in a word or two.
func (e End) short() string {
	switch {
	case !e.Known:
		return ""
	case e.Reason == "OOMKilled":
		return "out of memory"
	}
	return fmt.Sprintf("exit %d", e.Code)
}

func words(row string) func(Finding) string { return func(Finding) string { return row } }

func ofNode(what string) func(Finding) string {
	return func(f Finding) string { return f.Node + " " + what }
}

func failed(f Finding) string {
	if f.End.Known {
		return "failed, " + f.End.short()
	}
	return "failed: " + cmp.Or(f.Reason, "no reason given")
}

func joined(a, b string) string {
	if b == "" {
		return a
	}
	return a + ", " + b
}
