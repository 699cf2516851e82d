// Program kubectl is the real kubectl, built from its module, for the tests of the hub's API. It is
// a separate module, so that the product does not depend on it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
