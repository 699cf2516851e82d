// Package suite is the module that Kubernetes' end-to-end suite is built from. It has
// no code: go.mod names the release, and its tools are the programs beside the suite.
package suite

import _ "k8s.io/kubernetes/test/e2e"
