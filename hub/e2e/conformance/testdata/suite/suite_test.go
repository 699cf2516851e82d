// Package suite is the module from which Kubernetes' end-to-end suite is built. It has no code:
// go.mod names the release, and its tools are the suite's other programs.
package suite

import _ "k8s.io/kubernetes/test/e2e"
