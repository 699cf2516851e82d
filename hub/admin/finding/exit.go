package finding

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// An exit is how a container ended, in words, and what to do next.
type exit struct{ How, Next string }

// signals are the signals that end programs: signal(7).
var signals = map[int32]struct{ name, means, next string }{
	1: {"SIGHUP", "its terminal hung up", ""},
	2: {"SIGINT", "it was interrupted", ""},
	3: {"SIGQUIT", "it was told to quit", ""},
	4: {"SIGILL", "its processor does not know an instruction",
		"The image may be built for another processor: look for one for this node's architecture."},
	6: {"SIGABRT", "it gave up by itself, as after a failed assertion", ""},
	7: {"SIGBUS", "it touched memory that is not there",
		"A full disk under a mapped file does this, too: look at the node's disk."},
	8: {"SIGFPE", "an arithmetic error, such as a division by zero", ""},
	9: {"SIGKILL", "it was killed: its liveness probe failed, memory ran out, or it did not stop within its grace period",
		"Look at the pod's events for a probe, and at the node's memory."},
	11: {"SIGSEGV", "it touched memory that is not its own",
		"This is a mistake in the program, or a library that does not fit: try the version before."},
	13: {"SIGPIPE", "the reader of its output closed the pipe", ""},
	15: {"SIGTERM", "it was stopped",
		"A user or its liveness probe stopped it: look at the pod's events."},
	31: {"SIGSYS", "it made a system call that its seccomp profile forbids",
		"Give the pod a seccomp profile that allows the call."},
}

// exitOf says how a container ended. limit is its memory limit, "" for none.
func exitOf(t *corev1.ContainerStateTerminated, limit string) exit {
	code := t.ExitCode
	switch t.Reason {
	case "OOMKilled":
		if limit == "" {
			return exit{fmt.Sprintf("was killed because memory ran out (exit code %d, OOMKilled); it has no memory limit",
				code), "Give it a memory limit, so that it cannot take the node's, and a request that fits; or place it where " +
				"there is more."}
		}
		return exit{fmt.Sprintf("was killed because it used more memory than its limit of %s (exit code %d, OOMKilled)",
			limit, code), "Raise the limit if it needs more, or look for a memory leak."}
	case "ContainerStatusUnknown":
		return exit{"ended in an unknown way",
			"It was removed outside of Flotilla: look at who else uses the device's engine."}
	case "ContainerCannotRun", "StartError":
		return exit{fmt.Sprintf("could not be started (exit code %d)", code),
			"Look at its command and its mounts."}
	}
	signal := t.Signal
	if signal == 0 && code > 128 && code < 128+65 {
		signal = code - 128
	}
	if s, ok := signals[signal]; ok {
		return exit{fmt.Sprintf("ended by %s (exit code %d): %s", s.name, code, s.means), s.next}
	}
	if signal != 0 {
		return exit{fmt.Sprintf("ended by signal %d (exit code %d)", signal, code), ""}
	}
	switch code {
	case 0:
		return exit{"ended by itself with exit code 0, as if its work were done",
			"A program that should keep running must stay in the foreground; work that ends belongs in a Job."}
	case 1:
		return exit{"ended with exit code 1", ""}
	case 2:
		return exit{"ended with exit code 2: a Go program's panic, or wrong arguments", ""}
	case 126:
		return exit{"ended with exit code 126: its command is there, and cannot be run",
			"The file must be executable, and for the node's architecture."}
	case 127:
		return exit{"ended with exit code 127: its command was not found",
			"Compare command and args with what is in the image."}
	case 255, -1:
		return exit{fmt.Sprintf("ended with exit code %d, often an error without a code of its own", code), ""}
	}
	return exit{fmt.Sprintf("ended with exit code %d", code), "The program's documentation says what that code means."}
}
