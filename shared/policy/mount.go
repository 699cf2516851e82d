package policy

import (
	"path"
	"strings"
	"unicode"
)

// MountPath returns why a volume cannot be mounted at a path in a container, or "". In addition to
// Kubernetes it refuses the container's root, and characters that engines parse as the end of a
// path, such as commas in Podman.
func MountPath(name string) string {
	switch clean := path.Clean(name); {
	case strings.Contains(name, ":"):
		return "must not contain ':'"
	case strings.ContainsAny(name, `,"`) || strings.ContainsFunc(name, unicode.IsControl):
		return "must not contain commas, quotes or control characters, which container engines misread"
	case !path.IsAbs(name):
		return "must be an absolute path"
	case clean == "/":
		return "must not be the root of the container"
	case inProc(clean):
		return "must not be /proc or below it, through which the container is confined"
	}
	return ""
}

// WorkingDir returns why a directory cannot be a container's working directory, or "". With
// /proc/self/fd as the directory, older runtimes let a container escape (CVE-2024-21626).
func WorkingDir(name string) string {
	if inProc(path.Clean("/" + name)) {
		return "must not be /proc or below it"
	}
	return ""
}

func inProc(clean string) bool { return clean == "/proc" || strings.HasPrefix(clean, "/proc/") }
